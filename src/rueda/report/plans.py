"""The reader of ``plan.json``: efficiency and time against workers, the recommended row, the critical batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rueda.records.plan import CurvePoint, JoiningPhase, Plan, PlanRow
from rueda.report.figures.parts import colour, curve, log_axis, shade
from rueda.report.model import Cell, Section, Table, field_as
from rueda.report.parallelism import predicted_table
from rueda.report.plan_exchanges import by_sync_every
from rueda.report.plan_failures import by_interval, by_spares, interval_plot, spares_plot
from rueda.report.plot import Plot
from rueda.terminal.numbers import count, digits, milliseconds, money, percent, predicted_time, things


def to_section(plan: Plan) -> Section:
    """Return the section about a plan."""
    section = Section(title=f"Plan for {plan.task} on {plan.cluster_title or plan.cluster}", task=plan.task)
    section.told += [f"Parallel form: {plan.form_reason}."] * bool(plan.form_reason)
    section.told += [*plan.advice, *(f"Beware: {text.removesuffix('.')}." for text in plan.warnings)]
    section.tables += [
        _table(plan), *_forms(plan), *_exchanges(plan), *_joining(plan), *_failures(plan), _scaling(plan),
        Table.of("What this plan does not know", plan.unknown, {"not known": str}),
        Table.of("Sources of the cluster's figures", plan.sources, {"source": str}),
    ]  # fmt: skip
    section.plots += [_efficiency(plan), _time(plan), _batches(plan)]
    if plan.failures is not None:
        section.plots += [interval_plot(plan.failures), spares_plot(plan.failures)]
    return section


def _table(plan: Plan) -> Table:
    columns = {
        "workers": field_as("workers", count),
        "nodes": field_as("nodes", count),
        "local batch": field_as("local_batch", count),
        "global batch": field_as("global_batch", count),
        "step": field_as("step_seconds", milliseconds),
        f"{plan.unit}/s": field_as("images_per_second", "{:,.0f}".format),
        "scaling efficiency": field_as("efficiency", percent),
    }
    if plan.noise is not None:
        columns[f"statistical efficiency (against batch {count(plan.base_batch)})"] = field_as(
            "statistical_efficiency", percent
        )
    columns |= {
        "epochs": field_as("epochs", lambda epochs: count(round(epochs, 1))),
        "updates": field_as("updates", "{:,.0f}".format),
        "time": field_as("hours", lambda hours: predicted_time(3600 * hours)),
    }
    if plan.currency is not None:
        columns[f"cost ({plan.currency})"] = field_as("money", money)
    if any(row.growth_factor is not None for row in plan.best()):
        columns["last global batch"] = field_as("final_batch", count)
    columns["advice"] = lambda row: "recommended" if row.recommended else ""
    note = (
        f"Epochs, updates and time are what the recipe of each row runs, to the result of one worker in "
        f"{plan.base_epochs} epochs at batch {count(plan.base_batch)}."
    )
    return Table.of("The best local batch for each number of workers", plan.best(), columns, note)


def _joining(plan: Plan) -> list[Table]:
    """Return the table of the workers that join as the batch grows, against all of them from the start."""
    found, chosen = plan.joining, plan.chosen
    if found is None or not found.grows:
        return []
    columns: dict[str, Callable[[JoiningPhase], Cell]] = {
        "epochs": lambda phase: f"{phase.first_epoch} to {phase.end_epoch}",
        "global batch": field_as("global_batch", count),
        "workers": field_as("workers", count),
        "nodes": field_as("nodes", count),
        "updates": field_as("updates", count),
        "time": field_as("hours", lambda hours: predicted_time(3600 * hours)),
        "node-hours": lambda phase: (phase.nodes * phase.hours, digits(phase.nodes * phase.hours)),
    }
    if plan.currency is not None:
        columns[f"cost ({plan.currency})"] = field_as("money", money)
    paid = "" if found.money is None else f", {money(found.money)} instead of {money(chosen.money)} {plan.currency}"
    note = (
        f"In all {predicted_time(3600 * found.hours)} instead of {predicted_time(3600 * chosen.hours)} with "
        f"{things(chosen.workers, 'worker')} from the start, {digits(found.node_hours)} instead of "
        f"{digits(chosen.nodes * chosen.hours)} node-hours{paid}. It needs an elastic launcher, or stopping at these "
        "epochs and resuming with more workers; the time for that is not included."
    )
    task = plan.task if plan.task_file is None else plan.task_file.argument()
    return [
        Table.of("Workers that join as the batch grows", found.phases, columns, note),
        Table.of("Stopped and resumed with more workers", found.commands(task, "planned.toml"), {"command": str}),
    ]


def _failures(plan: Plan) -> list[Table]:
    return [] if plan.failures is None else [by_interval(plan.failures), by_spares(plan.failures)]


def _forms(plan: Plan) -> list[Table]:
    return [predicted_table(plan)] if plan.forms else []


def _exchanges(plan: Plan) -> list[Table]:
    return [by_sync_every(plan)] if plan.exchanges else []


def _scaling(plan: Plan) -> Table:
    """Return the table of weak scaling (constant local batch) and strong scaling (constant global batch)."""
    rows = sorted(plan.rows, key=lambda row: (row.workers, row.scaling, row.local_batch))
    columns: dict[str, Callable[[PlanRow], Cell]] = {
        "workers": field_as("workers", count),
        "scaling": lambda row: row.scaling,
        "local batch": field_as("local_batch", count),
        "compute": field_as("compute_seconds", milliseconds),
        "all-reduce": field_as("sync_seconds", milliseconds),
        "not overlapped": field_as("exposed_seconds", milliseconds),
        "waiting for the slowest": field_as("straggler_seconds", milliseconds),
        f"{plan.unit}/s against one worker": field_as("speedup", lambda speedup: f"{digits(speedup)}x"),
        "scaling efficiency": field_as("efficiency", percent),
    }
    note = "Weak: the local batch is one worker's. Strong: the global batch is one worker's, divided among the workers."
    return Table.of("Weak and strong scaling", (row for row in rows if row.scaling != "other"), columns, note)


def _efficiency(plan: Plan) -> Plot:
    rows = plan.best()
    workers = [row.workers for row in rows]
    traces = [
        _line(workers, [100 * row.efficiency for row in rows], f"{plan.unit}/s per worker", "@blue", "%{y:.1f} %")
    ]
    if plan.noise is not None:
        worth = [100 * (row.statistical_efficiency or 0) for row in rows]
        traces.append(_line(workers, worth, "statistical efficiency", "@orange", "%{y:.1f} %"))
        both = [100 * rows[0].hours / (row.workers * row.hours) for row in rows]
        traces.append(_line(workers, both, "both: progress per worker", "@green", "%{y:.1f} %", dash="dot"))
    traces.append(_mark(plan.chosen, 100 * plan.chosen.efficiency))
    return Plot(
        name="plan-efficiency", title="Efficiency against workers", traces=traces, half=True, note=_shade_note(plan),
        layout=_against_workers(plan, {"title": "% of one worker", "rangemode": "tozero"}),
    )  # fmt: skip


def _time(plan: Plan) -> Plot:
    rows = plan.best()
    workers, hours = [row.workers for row in rows], [row.hours for row in rows]
    ideal = [rows[0].hours / count for count in workers]
    size, unit = (3600.0, "seconds") if max(hours) < 0.1 else (60.0, "minutes") if max(hours) < 3 else (1.0, "hours")
    shown = f"%{{y:,.3g}} {unit}"
    traces = [
        _line(workers, [size * value for value in hours], "predicted", "@blue", shown),
        _line(workers, [size * value for value in ideal], "ideal", "@muted", shown, "dot"),
        _mark(plan.chosen, size * plan.chosen.hours),
    ]
    if plan.useful_workers is not None:
        curve = [(point.workers, size * point.hours) for point in plan.curve]
        traces.insert(1, _line([x for x, _ in curve], [y for _, y in curve], "best batch", "@green", shown, "dash"))
    if _wasted(plan):
        useful = next(point for point in plan.curve if point.workers == plan.useful_workers)
        traces.insert(-1, _last_useful(useful, size * useful.hours))
    layout = _against_workers(plan, {"title": unit, "type": "log"})
    layout["xaxis"] = log_axis("workers", sorted({*workers, *(point.workers for point in plan.curve)}))
    return Plot(
        name="plan-time", title="Time to the target", traces=traces, layout=layout, half=True, note=_wasted(plan)
    )


def _wasted(plan: Plan) -> str:
    if plan.useful_workers is None or plan.useful_workers == plan.curve[-1].workers:
        return ""
    return f"Beyond {count(plan.useful_workers)} workers another one is wasted: the time falls by less than 5 %."


def _batches(plan: Plan) -> Plot:
    """Draw progress per second against the global batch, with a line for each number of workers."""
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
    speed = f"{plan.unit}/s"
    what = f"{speed} x statistical efficiency" if plan.noise is not None else speed
    layout: dict[str, Any] = {
        "xaxis": {"title": "global batch", "type": "log"}, "yaxis": {"title": what, "type": "log"}, "showlegend": True,
    }  # fmt: skip
    largest = max(row.global_batch for row in plan.rows)
    if plan.noise is not None and plan.noise.value < largest:
        layout["shapes"] = [shade(plan.noise.value, largest * 1.3, "@red", 0.1)]
    return Plot(
        name="plan-batches", title="Which batch for how many workers", traces=traces, layout=layout,
        note=_shade_note(plan),
        narrow_height=320 + 19 * len(traces),  # a line of the legend for each
    )  # fmt: skip


def _line(x: list[int], y: list[float], name: str, hue: str, shown: str, dash: str = "solid") -> dict[str, Any]:
    return curve(
        x, y, hue, width=2.2, dash=dash, mode="lines+markers", marker={"size": 6}, name=name,
        hovertemplate=f"%{{fullData.name}}: {shown}",
    )  # fmt: skip


def _mark(row: PlanRow, y: float, x: float | None = None) -> dict[str, Any]:
    text = f"recommended: {things(row.workers, 'worker')}, local batch {row.local_batch:,}"
    return {
        "type": "scatter", "mode": "markers", "x": [row.workers if x is None else x], "y": [y], "name": "recommended",
        "marker": {"size": 15, "symbol": "star", "color": "@red"}, "text": [text], "hovertemplate": "%{text}",
    }  # fmt: skip


def _last_useful(point: CurvePoint, y: float) -> dict[str, Any]:
    """Mark the number of workers beyond which another one is wasted."""
    text = f"beyond {things(point.workers, 'worker')} another one is wasted"
    return {
        "type": "scatter", "mode": "markers", "x": [point.workers], "y": [y], "name": "beyond it, wasted",
        "marker": {"size": 12, "symbol": "diamond-open", "color": "@orange", "line": {"width": 2.5}}, "text": [text],
        "hovertemplate": "%{text}",
    }  # fmt: skip


def _against_workers(plan: Plan, yaxis: dict[str, Any]) -> dict[str, Any]:
    """Return the layout; numbers of workers whose global batch exceeds the critical batch are shaded."""
    rows = plan.best()
    workers = [row.workers for row in rows]
    layout = {"xaxis": log_axis("workers", workers), "yaxis": yaxis, "showlegend": True}
    past = [row.workers for row in rows if plan.noise is not None and row.global_batch > plan.noise.value]
    if past:
        below = [count for count in workers if count < past[0]]
        start = (below[-1] * past[0]) ** 0.5 if below else past[0] / 1.3
        layout["shapes"] = [shade(start, max(past[-1], workers[-1]) * 1.3, "@red", 0.1)]
    return layout


def _shade_note(plan: Plan) -> str:
    if plan.noise is None:
        return "No noise scale was measured: how many more epochs a large batch needs is not known."
    return (
        f"Shaded: beyond the critical batch of about {plan.noise.value:,.0f}, where the statistical efficiency is "
        "below half of that of a tiny batch."
    )
