"""The part of a plan that is about failures: goodput against the checkpoint interval, and against the spare nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rueda.records.failure_plan import USES, FailurePlan, SimulatedGoodput
from rueda.report.figures.parts import area, curve, error_bars, log_axis, round_ticks
from rueda.report.model import Cell, Table, field_as
from rueda.report.plot import Plot
from rueda.terminal.numbers import count, percent, predicted_time, things


def by_interval(plan: FailurePlan) -> Table:
    """Return the table of goodput against interval: those twice as long as each other, the chosen and the best."""
    kept = {plan.chosen.interval_seconds, plan.best.interval_seconds}
    rows, last = list[SimulatedGoodput](), 0.0
    for row in plan.intervals:
        if row.interval_seconds >= 1.99 * last or row.interval_seconds in kept:
            rows.append(row)
            last = last if row.interval_seconds in kept and row.interval_seconds < 1.99 * last else row.interval_seconds
    columns: dict[str, Callable[[SimulatedGoodput], Cell]] = {
        "checkpoint every": field_as("interval_seconds", predicted_time),
        "goodput": lambda row: (row.goodput, percent(row.goodput, row.standard_error)),
        **{what: field_as(name, percent) for name, what in USES.items() if any(getattr(row, name) for row in rows)},
        "advice": lambda row: _advice(plan, row),
    }
    spares = things(plan.spares, "spare node")
    note = (
        f"Simulated {plan.repetitions:,} times, with {spares}; ± is the standard error, which the rows share: their "
        f"differences are more certain. Young 1974: {predicted_time(plan.young_seconds)}, Daly 2006: "
        f"{predicted_time(plan.daly_seconds)}."
    )
    title = (
        f"Failures in {predicted_time(3600 * plan.hours)} on {things(plan.job.nodes, 'node')}, one every "
        f"{predicted_time(plan.job.job_mtbf_seconds)}"
    )
    return Table.of(title, rows, columns, note)


def by_spares(plan: FailurePlan) -> Table:
    """Return the table of goodput against spare nodes: waiting for a repair where they do not suffice, or elastic."""
    found = _pairs(plan)
    nodes = plan.job.nodes

    def paid(row: SimulatedGoodput) -> Cell:
        worth = row.goodput * nodes / (nodes + row.spares)
        return (worth, percent(worth))

    columns: dict[str, Callable[[tuple[SimulatedGoodput, SimulatedGoodput]], Cell]] = {
        "spare nodes": lambda pair: (pair[0].spares, count(pair[0].spares)),
        "workers": lambda pair: (
            pair[0].spares * plan.workers_per_node, count(pair[0].spares * plan.workers_per_node)
        ),
        "goodput, waiting": lambda pair: (pair[0].goodput, percent(pair[0].goodput, pair[0].standard_error)),
        "per node paid": lambda pair: paid(pair[0]),
        "goodput, elastic": lambda pair: (pair[1].goodput, percent(pair[1].goodput, pair[1].standard_error)),
        "per node paid, elastic": lambda pair: paid(pair[1]),
        "advice": lambda pair: "chosen" if pair[0].spares == plan.spares else "",
    }  # fmt: skip
    note = (
        f"A checkpoint every {predicted_time(plan.by_spares[0].interval_seconds)}. Waiting: without a spare node the "
        "training waits for a repair. Elastic: it goes on with fewer nodes. Per node paid: goodput x nodes / (nodes + "
        "spares)."
    )
    return Table.of("Spare nodes", found, columns, note)


def interval_plot(plan: FailurePlan) -> Plot:
    """Draw goodput against interval, with its uncertainty and the intervals of Young, Daly and the plan."""
    rows = plan.intervals
    size, unit = (60.0, "minutes") if rows[-1].interval_seconds >= 600 else (1.0, "seconds")
    x = [row.interval_seconds / size for row in rows]
    low, high = ([100 * (row.goodput + side * row.standard_error) for row in rows] for side in (-2, 2))
    ends = (min(low), max(high))
    shown = f"every %{{x:,.3g}} {unit}: %{{y:.2f}} %"
    traces = [
        area(x, low, high, "@blue", 0.18, name="± 2 standard errors", showlegend=False),
        curve(
            x, [100 * row.goodput for row in rows], "@blue", width=2.2, mode="lines+markers", marker={"size": 5},
            name="simulated", hovertemplate=f"%{{fullData.name}}, {shown}",
        ),
        _upright("Young 1974", plan.young_seconds, size, ends, "@orange", "solid"),
        _upright("Daly 2006", plan.daly_seconds, size, ends, "@green", "dash"),
        _star(plan.interval_seconds / size, 100 * plan.chosen.goodput, shown),
    ]  # fmt: skip
    layout: dict[str, Any] = {
        "xaxis": log_axis(f"{unit} between two checkpoints", round_ticks(x[0] / 1.1, x[-1] * 1.1)),
        "yaxis": {"title": "goodput, %"}, "showlegend": True,
    }  # fmt: skip
    note = (
        f"Of {predicted_time(3600 * plan.hours)} on {things(plan.job.nodes, 'node')}, with "
        f"{things(plan.spares, 'spare node')}. Shorter intervals save too often, longer ones lose too much."
    )
    return Plot(
        name="plan-checkpoints", title="Goodput against the checkpoint interval", traces=traces, layout=layout,
        half=True, note=note,
    )  # fmt: skip


def spares_plot(plan: FailurePlan) -> Plot:
    """Draw goodput against the number of spare nodes, waiting and elastic."""
    traces = []
    for elastic, name, hue in ((False, "waits for a repair", "@blue"), (True, "elastic", "@green")):
        rows = [row for row in plan.by_spares if row.elastic == elastic]
        traces.append(
            curve(
                [row.spares for row in rows], [100 * row.goodput for row in rows], hue, width=2.2,
                mode="lines+markers", marker={"size": 6}, name=name,
                error_y=error_bars([200 * row.standard_error for row in rows], hue),
                hovertemplate="%{fullData.name}, %{x} spare nodes: %{y:.2f} %",
            )
        )  # fmt: skip
    own = next(row for row in plan.by_spares if row.spares == plan.spares and row.elastic == plan.elastic)
    shown = "%{x} spare nodes: %{y:.2f} %"
    traces.append(_star(plan.spares, 100 * own.goodput, shown))
    numbers = sorted({row.spares for row in plan.by_spares})
    layout: dict[str, Any] = {
        "xaxis": {"title": "spare nodes", "tickvals": numbers, "ticktext": [count(number) for number in numbers]},
        "yaxis": {"title": "goodput, %"}, "showlegend": True,
    }  # fmt: skip
    note = "Bars: two standard errors. Chosen: the most goodput for each node that is paid, or the number asked for."
    return Plot(
        name="plan-spares", title="Goodput against spare nodes", traces=traces, layout=layout, half=True, note=note
    )


def _pairs(plan: FailurePlan) -> list[tuple[SimulatedGoodput, SimulatedGoodput]]:
    """Return the simulations of each number of spares, waiting and elastic."""
    waiting = {row.spares: row for row in plan.by_spares if not row.elastic}
    elastic = {row.spares: row for row in plan.by_spares if row.elastic}
    return [(waiting[number], elastic[number]) for number in sorted(waiting) if number in elastic]


def _advice(plan: FailurePlan, row: SimulatedGoodput) -> str:
    names = {"chosen": plan.chosen, "best simulated": plan.best}
    return ", ".join(name for name, other in names.items() if other is row)


def _upright(name: str, seconds: float, size: float, ends: tuple[float, float], hue: str, dash: str) -> dict[str, Any]:
    """Return a vertical line at a formula's interval, with an entry in the legend."""
    text = f"{name}: {predicted_time(seconds)}"
    return curve(
        [seconds / size] * 2, ends, hue, width=1.6, dash=dash, name=text, hovertemplate="%{fullData.name}"
    )  # fmt: skip


def _star(x: float, y: float, shown: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "x": [x], "y": [y], "name": "chosen",
        "marker": {"size": 13, "symbol": "star", "color": "@red"}, "hovertemplate": f"%{{fullData.name}}, {shown}",
    }  # fmt: skip
