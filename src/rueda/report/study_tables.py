"""The studies beside the table of techniques, in words and tables: throughput, steps to a target, the linear model."""

from __future__ import annotations

from rueda.records.descent import MEASURED, GradientDescent
from rueda.records.steps_to_target import StepsToTarget
from rueda.records.throughput import Throughput
from rueda.report.model import Section, Table
from rueda.terminal.numbers import count, digits, milliseconds, things, with_spread

Cells = list[list[str | tuple[float | None, str]]]


def tell_throughput(section: Section, found: Throughput) -> None:
    """Add a sentence and a table of the throughput to a section."""
    if found.saturates_at is not None:
        section.told.append(
            f"There are hardly more images a second beyond a local batch of {count(found.saturates_at)}."
        )
    cells: Cells = [
        [
            (point.batch, count(point.batch)),
            (point.images_per_second, with_spread(point.images_per_second, point.spread)),
            (point.milliseconds_per_update, milliseconds(point.milliseconds_per_update / 1e3)),
        ]
        for point in sorted(found.points, key=lambda point: point.batch)
    ]
    if cells:
        section.tables.append(
            Table(
                title="Throughput against local batch", heads=["local batch", "images/s", "an update"], rows=cells,
                note="± is the spread over repeats, on this machine.",
            )
        )  # fmt: skip


def tell_steps(section: Section, found: StepsToTarget) -> None:
    """Add a sentence and a table of the updates to a target to a section."""
    where = f"{100 * found.target_accuracy:.3g} % test accuracy"
    if found.fit is not None:
        low, high = (count(round(end)) for end in found.fit.interval)
        critical = count(round(found.fit.critical_batch))
        section.told.append(f"To {where} the critical batch size is about {critical} ({low} to {high}).")
    cells: Cells = [
        [
            (point.batch, count(point.batch)),
            (point.rate, digits(point.rate)),
            (point.updates, count(round(point.updates))),
            (point.examples, count(None if point.examples is None else round(point.examples))),
            (point.num_seeds, count(point.num_seeds)),
        ]
        for point in sorted(found.points, key=lambda point: point.batch)
        if point.updates is not None
    ]
    if cells:
        section.tables.append(
            Table(
                title=f"Updates to {where}", heads=["batch", "best rate", "updates", "examples", "seeds"], rows=cells,
                note="The rate was tuned at each batch size; means over the seeds.",
            )
        )  # fmt: skip


def tell_descent(section: Section, found: GradientDescent) -> None:
    """Add a sentence and a table of gradient descent on the linear model to a section."""
    rows = sorted(found.rows, key=lambda row: row.batch)
    if len(rows) > 1:
        small, large = rows[0], rows[-1]
        section.told.append(
            f"Gradient descent on the linear model takes {count(small.updates)} updates in {count(small.epochs)} "
            f"epochs with batch {count(small.batch)}, and {count(large.updates)} in {count(large.epochs)} "
            f"with batch {count(large.batch)}."
        )
    cells: Cells = []
    for row in rows:
        means = [(getattr(row, name), getattr(row, f"{name}_spread")) for name in MEASURED]
        cells.append([(row.batch, count(row.batch)), *((mean, with_spread(mean, spread)) for mean, spread in means)])
    if cells:
        note = f"Means over {things(found.seeds, 'seed')}. ± is the spread over seeds. Rate {found.rate:g}."
        section.tables.append(
            Table(title="Gradient descent on the linear model", heads=["batch", *MEASURED], rows=cells, note=note)
        )
