"""A plan with sliders: which number of workers on which cluster, how long, how much, and with which recipe."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from rueda.labs.lab_4.course_profile import course_profile
from rueda.labs.lab_4.learning_curves import forecast
from rueda.labs.lab_4.steps import CLUSTERS, possible
from rueda.labs.showing import Code, Drawn, Text
from rueda.plan import Cluster, load_cluster, make_plan
from rueda.plan.on_cluster import time_on_cluster
from rueda.records.plan import Plan
from rueda.report.figures.parts import colour
from rueda.report.forecasts import answer
from rueda.report.forecasts import to_section as forecast_section
from rueda.report.model import Table
from rueda.report.plans import to_section
from rueda.report.plot import Plot
from rueda.terminal.numbers import count, money, predicted_time

SPEEDS = {"dgx-1-v100": 1.0, "pcie3-8": 1.0, "ethernet-25": 1.0, "dgx-a100": 2.5, "pcie4-4": 2.5, "ethernet-100": 2.5,
          "dgx-h100": 6.0}  # fmt: skip
"""assumed speed of each cluster's device relative to the course's GPU; a plan for real money measures it"""


@cache
def place(cluster: str) -> Cluster:
    """Return a cluster with the assumed speed of its devices."""
    return replace(load_cluster(cluster), speed=SPEEDS.get(cluster, 1.0))


@cache
def plan(cluster: str, noise_scale: int, epochs: int = 40) -> Plan:
    """Plan the course's training on a cluster, if its noise scale is this one."""
    return make_plan(
        course_profile(noise_scale, epochs), place(cluster), workers=possible(place(cluster)), epochs=epochs
    )


def plan_figure(cluster: str, noise_scale: int) -> list[Drawn]:
    """Draw efficiency and time against the number of workers, and say what is recommended."""
    found = plan(cluster, noise_scale)
    section = to_section(found)
    efficiency, time, _ = section.plots
    chosen = found.chosen
    cost = "" if chosen.money is None else f", {money(chosen.money)} {found.currency}"
    told = (
        f"Recommended: **{chosen.workers} workers** with a local batch of {chosen.local_batch}: "
        f"{predicted_time(3600 * chosen.hours)}{cost}."
    )
    return [Text(told), efficiency, time, _short(section.tables[0])]


_SHORT_HEADS = {"scaling efficiency": "scaling", "advice": ""}


def _short(table: Table) -> Table:
    """Return the table without the columns that a phone has no room for, and with shorter headings."""
    dropped = ("nodes", "step", "updates", "global batch", "epochs", "images/s")
    kept = [at for at, head in enumerate(table.heads) if head not in dropped]
    heads = [_SHORT_HEADS.get(table.heads[at], table.heads[at]) for at in kept]
    heads = ["worth of an image" if head.startswith("statistical") else head for head in heads]
    return replace(table, heads=heads, rows=[[row[at] for at in kept] for row in table.rows])


def batches_figure(cluster: str, noise_scale: int) -> Plot:
    """Draw progress per second against the global batch, a line for each number of workers."""
    return to_section(plan(cluster, noise_scale)).plots[2]


def advice(cluster: str, noise_scale: int) -> list[Drawn]:
    """Return the plan in words, and the recipe that it chose, with its reasons."""
    found = plan(cluster, noise_scale)
    unknown = Table.of("What the plan does not know", found.unknown, {"not known": str})
    return [
        *(Text(line) for line in (*found.advice, *found.warnings)),
        unknown,
        Code(_reasoned(found.recipe), "planned.toml: what was decided, and why"),
    ]


def _reasoned(recipe: str) -> str:
    """Return the lines of a recipe that carry a reason."""
    return "\n".join(line for line in recipe.splitlines() if "#" in line)


def money_figure(noise_scale: int) -> list[Drawn]:
    """Draw time against cost: a dot for every number of workers on every cluster that has a price."""
    traces, rows = [], []
    for number, name in enumerate(CLUSTERS):
        found = plan(name, noise_scale)
        best = [row for row in found.best() if row.money is not None]
        if not best:
            continue
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": name, "x": [60 * row.hours for row in best],
                "y": [row.money for row in best], "line": {"color": colour(number)},
                "customdata": [count(row.workers) for row in best],
                "hovertemplate": "%{fullData.name}, %{customdata} workers: %{x:.3g} min, %{y:,.3g}",
            }
        )  # fmt: skip
        rows.append(found)
    plot = Plot(
        name="money", title="Time and money: each dot is a number of workers", traces=traces,
        layout={"xaxis": {"title": "minutes", "type": "log"}, "showlegend": True,
                "yaxis": {"title": f"cost ({rows[0].currency if rows else 'USD'})", "type": "log"}},
        note="Whole nodes are paid for. Towards the lower left is better; a line that rises to the left buys time.",
        height=420, narrow_height=500,
    )  # fmt: skip
    table = Table.of(
        "What the plan recommends",
        rows,
        {
            "cluster": lambda found: found.cluster,
            "workers": lambda found: (found.chosen.workers, count(found.chosen.workers)),
            "time": lambda found: (found.chosen.hours, predicted_time(3600 * found.chosen.hours)),
            "cost": lambda found: (found.chosen.money, money(found.chosen.money)),
            "cheapest": lambda found: _cheapest(found),
        },
        note="Cheapest: the least that the target costs on that cluster, with any number of workers.",
    )
    return [plot, table]


def _cheapest(found: Plan) -> tuple[float, str]:
    least = min(row.money for row in found.best() if row.money is not None)
    return least, money(least)


def target_on_cluster(target_error: float, cluster: str, workers: int) -> list[Drawn]:
    """Say what a target error on Fashion-MNIST needs: data by the forecast, time and money by the prediction."""
    needed = forecast("Fashion-MNIST", target_error)
    found = time_on_cluster(needed, course_profile(), place(cluster), workers=workers, local_batch=32)
    notes = [Text(f"Note: {note}.") for note in found.notes]
    return [forecast_section(found).plots[0], *map(Text, answer(found)), *notes]
