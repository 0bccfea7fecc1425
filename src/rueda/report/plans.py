"""A plan on the page: efficiency and time against workers, the row to take, the region past the critical batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rueda.records.plan import Plan, PlanRow
from rueda.report.figures.parts import colour, log_axis
from rueda.report.model import Section, Table
from rueda.report.plot import Plot
from rueda.terminal.numbers import NONE, count, digits, milliseconds, percent, predicted_time, things


def read(place: Path) -> Section:
    """Read a plan: the file, or ``plan.json`` of a folder."""
    plan = Plan.load(place)
    section = Section(title=f"Plan for {plan.task} on {plan.cluster_title or plan.cluster}", task=plan.task)
    section.told += [*plan.advice, *(f"Beware: {text}" for text in plan.warnings)]
    section.tables.append(_table(plan))
    section.tables.append(_scaling(plan))
    for title, texts in (("What this plan does not know", plan.unknown), ("The cluster's figures", plan.sources)):
        if texts:
            rows: list[list[str | tuple[float | None, str]]] = [[text] for text in texts]
            section.tables.append(
                Table(title=title, heads=["from" if texts is plan.sources else "not known"], rows=rows)
            )
    section.plots += [_efficiency(plan), _time(plan), _batches(plan)]
    section.environments.append({**plan.environment, "command": plan.command})
    return section


def _table(plan: Plan) -> Table:
    heads = ["workers", "nodes", "local batch", "global batch", "step", "images/s", "scaling efficiency"]
    heads += [f"an example counts (against batch {count(plan.base_batch)})"] * (plan.noise is not None) + [
        "epochs",
        "updates",
        "time",
    ]
    heads += [f"cost ({plan.currency})"] * (plan.currency is not None) + ["advice"]
    rows: list[list[str | tuple[float | None, str]]] = []
    for row in plan.best():
        cells: list[str | tuple[float | None, str]] = [
            (row.workers, count(row.workers)),
            (row.nodes, count(row.nodes)),
            (row.local_batch, count(row.local_batch)),
            (row.global_batch, count(row.global_batch)),
            (row.step_seconds, milliseconds(row.step_seconds)),
            (row.images_per_second, f"{row.images_per_second:,.0f}"),
            (row.efficiency, percent(row.efficiency)),
        ]
        cells += [(row.statistical_efficiency, percent(row.statistical_efficiency))] * (plan.noise is not None)
        cells += [
            (row.epochs, count(round(row.epochs, 1))),
            (row.updates, f"{row.updates:,.0f}"),
            (row.hours, predicted_time(3600 * row.hours)),
        ]
        cells += [(row.money, NONE if row.money is None else f"{row.money:,.2f}")] * (plan.currency is not None)
        rows.append([*cells, "take this" if row.recommended else ""])
    note = f"To where one worker comes in {plan.base_epochs} epochs at batch {count(plan.base_batch)}."
    return Table(title="The best local batch for each number of workers", heads=heads, rows=rows, note=note)


def _scaling(plan: Plan) -> Table:
    """Weak scaling keeps one worker's local batch, strong scaling its global batch."""
    rows: list[list[str | tuple[float | None, str]]] = []
    for row in sorted(plan.rows, key=lambda row: (row.workers, row.scaling, row.local_batch)):
        if row.scaling == "other":
            continue
        rows.append(
            [
                (row.workers, count(row.workers)),
                row.scaling,
                (row.local_batch, count(row.local_batch)),
                (row.compute_seconds, milliseconds(row.compute_seconds)),
                (row.sync_seconds, milliseconds(row.sync_seconds)),
                (row.exposed_seconds, milliseconds(row.exposed_seconds)),
                (row.straggler_seconds, milliseconds(row.straggler_seconds)),
                (row.speedup, f"{digits(row.speedup)}x"),
                (row.efficiency, percent(row.efficiency)),
            ]
        )
    heads = ["workers", "scaling", "local batch", "compute", "exchange", "of it not hidden", "waiting for the slowest"]
    return Table(
        title="Weak and strong scaling", heads=[*heads, "images/s against one", "scaling efficiency"], rows=rows,
        note="Weak: one worker's local batch stays. Strong: its global batch stays, cut between the workers.",
    )  # fmt: skip


def _efficiency(plan: Plan) -> Plot:
    rows = plan.best()
    workers = [row.workers for row in rows]
    traces = [_line(workers, [100 * row.efficiency for row in rows], "images/s a worker", "@blue", "%{y:.1f} %")]
    if plan.noise is not None:
        worth = [100 * (row.statistical_efficiency or 0) for row in rows]
        traces.append(_line(workers, worth, "what an example counts", "@orange", "%{y:.1f} %"))
        both = [100 * row.progress / (row.workers * rows[0].progress) for row in rows]
        traces.append(_line(workers, both, "progress a worker", "@green", "%{y:.1f} %", dash="dot"))
    traces.append(_mark(plan.chosen, 100 * plan.chosen.efficiency))
    layout = {
        "xaxis": log_axis("workers", workers), "yaxis": {"title": "% of one worker", "rangemode": "tozero"},
        **_shade(plan, rows), "showlegend": True,
    }  # fmt: skip
    return Plot(
        name="plan-efficiency", title="Efficiency against workers", traces=traces, layout=layout, half=True,
        note=_shade_note(plan),
    )  # fmt: skip


def _time(plan: Plan) -> Plot:
    rows = plan.best()
    workers, hours = [row.workers for row in rows], [row.hours for row in rows]
    ideal = [rows[0].hours / count for count in workers]
    size, unit = (3600.0, "seconds") if max(hours) < 0.1 else (60.0, "minutes") if max(hours) < 3 else (1.0, "hours")
    traces = [
        _line(workers, [size * value for value in hours], "to the target", "@blue", f"%{{y:,.3g}} {unit}"),
        _line(
            workers, [size * value for value in ideal], "if nothing were lost", "@muted", f"%{{y:,.3g}} {unit}", "dot"
        ),
        _mark(plan.chosen, size * plan.chosen.hours),
    ]
    layout = {
        "xaxis": log_axis("workers", workers), "yaxis": {"title": unit, "type": "log"},
        **_shade(plan, rows), "showlegend": True,
    }  # fmt: skip
    return Plot(name="plan-time", title="Time to the target", traces=traces, layout=layout, half=True)


def _batches(plan: Plan) -> Plot:
    """Show progress a second against the global batch, a line a number of workers."""
    counts = sorted({row.workers for row in plan.rows})
    traces = []
    for index, workers in enumerate(counts):
        rows = sorted((row for row in plan.rows if row.workers == workers), key=lambda row: row.global_batch)
        name = things(workers, "worker")
        trace = _line(
            [row.global_batch for row in rows], [row.progress for row in rows], name, colour(index),
            "batch %{x:,}: %{y:,.0f} a second",
        )  # fmt: skip
        traces.append(trace)
    traces.append(_mark(plan.chosen, plan.chosen.progress, x=plan.chosen.global_batch))
    what = "images that count / s" if plan.noise is not None else "images / s"
    layout: dict[str, Any] = {
        "xaxis": {"title": "global batch", "type": "log"}, "yaxis": {"title": what, "type": "log"}, "showlegend": True,
    }  # fmt: skip
    largest = max(row.global_batch for row in plan.rows)
    if plan.noise is not None and plan.noise.value < largest:
        layout["shapes"] = [_rectangle(plan.noise.value, largest * 1.3)]
    return Plot(
        name="plan-batches", title="Which batch for how many workers", traces=traces, layout=layout,
        note="Throughput x statistical efficiency. " * (plan.noise is not None) + _shade_note(plan),
        narrow_height=320 + 19 * len(traces),  # a line of the legend for each
    )  # fmt: skip


def _line(x: list[int], y: list[float], name: str, hue: str, shown: str, dash: str = "solid") -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "x": x, "y": y, "name": name, "marker": {"size": 6},
        "line": {"color": hue, "width": 2.2, "dash": dash}, "hovertemplate": f"%{{fullData.name}}: {shown}",
    }  # fmt: skip


def _mark(row: PlanRow, y: float, x: float | None = None) -> dict[str, Any]:
    text = f"{row.workers:,} workers, local batch {row.local_batch:,}"
    return {
        "type": "scatter", "mode": "markers", "x": [row.workers if x is None else x], "y": [y], "name": "recommended",
        "marker": {"size": 15, "symbol": "star", "color": "@red"}, "text": [text], "hovertemplate": "take %{text}",
    }  # fmt: skip


def _shade(plan: Plan, rows: list[PlanRow]) -> dict[str, Any]:
    """Shade the numbers of workers whose global batch is past the critical one."""
    if plan.noise is None:
        return {}
    past = [row.workers for row in rows if row.global_batch > plan.noise.value]
    if not past:
        return {}
    below = [row.workers for row in rows if row.workers < past[0]]
    start = (below[-1] * past[0]) ** 0.5 if below else past[0] / 1.3
    return {"shapes": [_rectangle(start, max(past[-1], rows[-1].workers) * 1.3)]}


def _rectangle(start: float, end: float) -> dict[str, Any]:
    return {
        "type": "rect", "x0": start, "x1": end, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
        "fillcolor": "@red", "opacity": 0.1, "line": {"width": 0},
    }  # fmt: skip


def _shade_note(plan: Plan) -> str:
    if plan.noise is None:
        return "No noise scale was measured: what a large batch costs in epochs is not known."
    return (
        f"Shaded: past the critical batch of about {plan.noise.value:,.0f}, where an example counts for less than half "
        "of one in a tiny batch."
    )
