"""What ``rueda plan`` prints: the table, the parallel forms, failures, advice, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rueda.plan import load_cluster
from rueda.plan.cluster import THIS_MACHINE
from rueda.tasks.naming import BUILTIN_TASKS
from rueda.terminal.metrics import write_number
from rueda.terminal.numbers import NONE, money, predicted_time, things
from rueda.terminal.table import TextTable, print_prose, print_table

if TYPE_CHECKING:
    from rueda.plan.run_comparison import RunComparison
    from rueda.records.plan import Plan, PlanRow


def print_clusters(names: Sequence[str]) -> None:
    """Print the names of the clusters and what they are."""
    width = max(map(len, names))
    for name in names:
        title = "the profiled machine" if name == THIS_MACHINE else load_cluster(name).title
        typer.echo(f"{name:<{width}}  {title}")


def print_plan(plan: Plan, recipe: Path, file: Path, html: Path | None) -> None:
    """Print a plan and the paths of its files.

    Args:
        plan: the plan.
        recipe: the file of its recipe.
        file: the file of the plan itself.
        html: its page, if there is one.
    """
    print_table(_table(plan))
    for table in _failure_tables(plan):
        print_table(table)
    for table in (*_form_tables(plan), *_exchange_tables(plan)):
        print_table(table)
    if plan.form_reason:
        print_prose(f"parallel form: {plan.form_reason}")
    for text in plan.advice:
        print_prose(text)
    for text in plan.warnings:
        print_prose(f"warning: {text}")
    typer.echo("not known:")
    for text in plan.unknown:
        print_prose(f"  {text}", indent="  ")
    typer.echo(f"recipe: {recipe}\nplan: {file}")
    if html is not None:
        typer.echo(f"page: {html}")
    quoted, task = shlex.quote(str(recipe)), _trainable(plan)
    if plan.joining is not None and plan.joining.grows and task is not None:
        typer.echo("workers that join, stopped at each milestone and resumed with more:")
        for command in plan.joining.commands(task, quoted):
            typer.echo(f"  {command}")
    typer.echo(f"next: {_next_step(plan, task, quoted)}")


def print_comparison(seen: RunComparison) -> None:
    """Print a run beside what the profile predicts for it."""
    who = f"{things(seen.workers, 'worker')}{', rehearsed' * seen.rehearsed}"
    rows = []
    for one in seen.figures:
        unit = f" {one.unit}" if one.unit else ""
        digits = ",.4g" if one.unit else ",.0f"
        cells = [NONE if value is None else f"{value:{digits}}{unit}" for value in (one.predicted, one.measured)]
        rows.append([one.name, *cells, NONE if one.ratio is None else f"{one.ratio:.2f}"])
    title = f"{seen.run}: {seen.task}, {who}, global batch {seen.global_batch:,}"
    print_table(TextTable(title, ("", "predicted", "measured", "measured / predicted"), rows, left=("",)))
    reached = [write_number(seen.metric, value) for value in seen.accuracy if value is not None]
    if reached:
        typer.echo(f"test {seen.metric.name} after each epoch{', %' * seen.metric.percent}: {' '.join(reached)}")
    for text in seen.notes:
        print_prose(text)


def _trainable(plan: Plan) -> str | None:
    """Return the task as `rueda train` takes it; None if only a script of the user knows how to train it."""
    if plan.task_file is not None:
        return plan.task_file.argument()
    return plan.task if plan.task in BUILTIN_TASKS else None


def _next_step(plan: Plan, task: str | None, recipe: str) -> str:
    """Return the command that trains by the plan."""
    workers = plan.chosen.workers
    if task is None:  # a profile of a user's own training loop
        return f"use the values of {recipe} in your training script, then: rueda run -np {workers} python SCRIPT"
    return f"rueda train {task} --recipe {recipe}{' --rehearse' * (workers > 1)}"


def _table(plan: Plan) -> TextTable:
    epochs = things(plan.base_epochs, "epoch")
    target = (
        f"updates, time: what the recipe runs, to the result of one worker in {epochs} at batch {plan.base_batch:,}"
    )
    heads = ["workers", "local batch", "global batch", f"{plan.unit}/s", "scaling %"]
    heads += ["statistical %"] * (plan.noise is not None) + ["updates", "time"]
    heads += [str(plan.currency)] * (plan.currency is not None)
    rows = plan.best()
    return TextTable(
        f"{plan.task} on {plan.cluster_title or plan.cluster}", heads, [_cells(plan, row) for row in rows],
        caption=f"* recommended; {target}", bold=[number for number, row in enumerate(rows) if row.recommended],
    )  # fmt: skip


def _failure_tables(plan: Plan) -> list[TextTable]:
    """Return goodput against interval and spares, as the page has it; nothing where failures are negligible."""
    if plan.failures is None:
        return []
    from rueda.report.plan_failures import by_interval, by_spares

    return [table.on_terminal(table.title) for table in (by_interval(plan.failures), by_spares(plan.failures))]


def _form_tables(plan: Plan) -> list[TextTable]:
    """Return the parallel forms, as the page has them; nothing where they were not predicted."""
    if not plan.forms:
        return []
    from rueda.report.parallelism import predicted_table

    return [table.on_terminal(table.title) for table in [predicted_table(plan)]]


def _exchange_tables(plan: Plan) -> list[TextTable]:
    """Return the intervals between exchanges, as the page has them; nothing where they were not predicted."""
    if not plan.exchanges:
        return []
    from rueda.report.plan_exchanges import by_sync_every

    table = by_sync_every(plan)
    return [table.on_terminal(table.title)]


def _cells(plan: Plan, row: PlanRow) -> list[str]:
    mark = "* " * row.recommended
    batch = f"{row.global_batch:,}" + f" to {row.final_batch:,}" * (row.growth_factor is not None)
    cells = [f"{mark}{row.workers:,}", f"{row.local_batch:,}", batch, f"{row.images_per_second:,.0f}"]
    cells.append(f"{100 * row.efficiency:.1f}")
    if plan.noise is not None:
        cells.append(NONE if row.statistical_efficiency is None else f"{100 * row.statistical_efficiency:.0f}")
    cells += [f"{row.updates:,.0f}", predicted_time(3600 * row.hours)]
    if plan.currency is not None:
        cells.append(money(row.money))
    return cells
