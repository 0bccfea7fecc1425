"""Sentences, tables and figures of the other studies: throughput, steps to a target, gradient descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from rueda.records.descent import MEASURED, GradientDescent
from rueda.records.json_record import JsonRecord
from rueda.records.parallelism import Parallelism
from rueda.records.steps_to_target import BatchPoint, StepsToTarget
from rueda.records.throughput import Throughput, ThroughputPoint
from rueda.report.figures.linear_model import contours, surface
from rueda.report.figures.steps import steps, target_words
from rueda.report.figures.throughput import throughput
from rueda.report.model import Cell, Section, Table, field_as
from rueda.report.parallelism import add_parallelism
from rueda.terminal.numbers import NONE, count, digits, milliseconds, things, with_spread


def add_throughput(section: Section, found: Throughput) -> None:
    """Add the throughput to a section: a sentence, a table and a figure."""
    section.plots += [throughput(found)] if found.points else []
    section.tables.append(throughput_table(found))
    if found.saturates_at is not None:
        section.told.append(f"Throughput saturates at a local batch of {count(found.saturates_at)}.")


def throughput_table(found: Throughput) -> Table:
    """Return the table of the measured local batches."""
    columns: dict[str, Callable[[ThroughputPoint], Cell]] = {
        "local batch": field_as("batch", count),
        f"{found.unit}/s": lambda point: (point.images_per_second, with_spread(point.images_per_second, point.spread)),
        "time per update": field_as("milliseconds_per_update", lambda time: milliseconds(time / 1e3)),
    }
    notes = {
        "median": "Medians over repeats; ± is half the distance between the quartiles.",
        "best": "The best of several rounds; ± is the standard deviation over them.",
    }
    return Table.of("Throughput against local batch", _by_batch(found.points), columns, notes[found.statistic])


_UNLIKELY = 0.05
"""p-value below which a lack of fit is told"""


def add_steps(section: Section, found: StepsToTarget) -> None:
    """Add the updates to a target to a section: a sentence, a table and a figure."""
    section.plots += [steps(found)] if any(point.updates for point in found.points) else []
    section.tables.append(steps_table(found))
    if found.fit is not None:
        critical, interval = count(round(found.fit.critical_batch)), found.fit.interval_text
        section.told.append(f"The critical batch size for {target_words(found)} is about {critical} ({interval}).")
        if found.fit.lack_of_fit is not None and found.fit.lack_of_fit < _UNLIKELY:
            section.told.append(
                "The batch sizes lie farther from the curve than seeds explain "
                f"(p = {found.fit.lack_of_fit:.2g}): some rates were tuned better than others, or the law is another."
            )


def steps_table(found: StepsToTarget) -> Table:
    """Return the table of the batch sizes, with the fitted updates and the regime of each."""

    def updates(point: BatchPoint) -> Cell:
        some = f" ({len(point.seeds)} of {point.num_seeds} seeds)" if point.seeds and not point.complete else ""
        return point.updates, _rounded(point.updates) + some

    def fitted(point: BatchPoint) -> Cell:
        value = None if found.fit is None else found.fit.updates(point.batch)
        value = value if value is not None and math.isfinite(value) else None  # the sum of two terms may overflow
        return value, _rounded(value)

    columns: dict[str, Callable[[BatchPoint], Cell]] = {
        "batch": field_as("batch", count),
        "best rate": field_as("rate", digits),
        "updates": updates,
        "examples": field_as("examples", _rounded),
        "fitted updates": fitted,
        "regime": lambda point: found.regime(point.batch) or NONE,
        "seeds": field_as("num_seeds", count),
    }
    note = "The rate was tuned at each batch size; means over the seeds."
    return Table.of(f"Updates to {target_words(found)}", _by_batch(found.points), columns, note)


def add_descent(section: Section, found: GradientDescent) -> None:
    """Add gradient descent on the linear model to a section: a sentence, a table and figures."""
    section.plots += [surface(found), contours(found)]
    section.tables.append(descent_table(found))
    rows = _by_batch(found.rows)
    if len(rows) > 1:
        small, large = rows[0], rows[-1]
        section.told.append(
            f"Gradient descent on the linear model takes {count(small.updates)} updates in {count(small.epochs)} "
            f"epochs with batch {count(small.batch)}, and {count(large.updates)} in {count(large.epochs)} "
            f"with batch {count(large.batch)}."
        )


def descent_table(found: GradientDescent) -> Table:
    """Return the table of the batch sizes."""
    columns = {"batch": field_as("batch", count), **{name: _measured(name) for name in MEASURED}}
    note = f"Means over {things(found.seeds, 'seed')}. ± is the spread over seeds. Rate {found.rate:g}."
    return Table.of("Gradient descent on the linear model", _by_batch(found.rows), columns, note)


ADDED: dict[type[JsonRecord], Callable[[Section, Any], None]] = {
    Throughput: add_throughput, StepsToTarget: add_steps, GradientDescent: add_descent, Parallelism: add_parallelism
}  # fmt: skip
"""the function that adds each record to the section of a study"""


def _measured(name: str) -> Callable[[Any], Cell]:
    return lambda row: (getattr(row, name), with_spread(getattr(row, name), getattr(row, f"{name}_spread")))


def _rounded(value: float | None) -> str:
    return count(None if value is None else round(value))


def _by_batch(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: row.batch)
