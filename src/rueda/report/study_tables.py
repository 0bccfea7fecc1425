"""The studies beside the table of techniques, in words and tables: throughput, steps to a target, the linear model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rueda.records.descent import MEASURED, GradientDescent
from rueda.records.steps_to_target import StepsToTarget
from rueda.records.throughput import Speed, Throughput
from rueda.report.model import Cell, Section, Table, field_as
from rueda.terminal.numbers import count, digits, milliseconds, things, with_spread


def tell_throughput(section: Section, found: Throughput) -> None:
    """Add a sentence and a table of the throughput to a section."""
    if found.saturates_at is not None:
        section.told.append(
            f"There are hardly more images a second beyond a local batch of {count(found.saturates_at)}."
        )
    columns: dict[str, Callable[[Speed], Cell]] = {
        "local batch": field_as("batch", count),
        "images/s": lambda point: (point.images_per_second, with_spread(point.images_per_second, point.spread)),
        "an update": field_as("milliseconds_per_update", lambda time: milliseconds(time / 1e3)),
    }
    is_median = found.statistic == "median"
    note = (
        "Medians over repeats; ± is half the distance between the quartiles."
        if is_median
        else "The best of some rounds; ± is the standard deviation over them."
    )
    _add(section, Table.of("Throughput against local batch", _by_batch(found.points), columns, note))


def tell_steps(section: Section, found: StepsToTarget) -> None:
    """Add a sentence and a table of the updates to a target to a section."""
    where = f"{100 * found.target_accuracy:.3g} % test accuracy"
    if found.fit is not None:
        low, high = (count(round(end)) for end in found.fit.interval)
        critical = count(round(found.fit.critical_batch))
        section.told.append(f"To {where} the critical batch size is about {critical} ({low} to {high}).")
    columns = {
        "batch": field_as("batch", count),
        "best rate": field_as("rate", digits),
        "updates": field_as("updates", _rounded),
        "examples": field_as("examples", _rounded),
        "seeds": field_as("num_seeds", count),
    }
    reached = [point for point in _by_batch(found.points) if point.updates is not None]
    note = "The rate was tuned at each batch size; means over the seeds."
    _add(section, Table.of(f"Updates to {where}", reached, columns, note))


def tell_descent(section: Section, found: GradientDescent) -> None:
    """Add a sentence and a table of gradient descent on the linear model to a section."""
    rows = _by_batch(found.rows)
    if len(rows) > 1:
        small, large = rows[0], rows[-1]
        section.told.append(
            f"Gradient descent on the linear model takes {count(small.updates)} updates in {count(small.epochs)} "
            f"epochs with batch {count(small.batch)}, and {count(large.updates)} in {count(large.epochs)} "
            f"with batch {count(large.batch)}."
        )
    columns = {"batch": field_as("batch", count), **{name: _measured(name) for name in MEASURED}}
    note = f"Means over {things(found.seeds, 'seed')}. ± is the spread over seeds. Rate {found.rate:g}."
    _add(section, Table.of("Gradient descent on the linear model", rows, columns, note))


def _measured(name: str) -> Callable[[Any], Cell]:
    return lambda row: (getattr(row, name), with_spread(getattr(row, name), getattr(row, f"{name}_spread")))


def _rounded(value: float | None) -> str:
    return count(None if value is None else round(value))


def _by_batch(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: row.batch)


def _add(section: Section, table: Table) -> None:
    if table.rows:
        section.tables.append(table)
