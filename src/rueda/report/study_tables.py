"""The studies beside the table of techniques, in words and tables: throughput, steps to a target, the linear model.

They are read leniently: what is no number counts as not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rueda.report.model import Section, Table, numbers, whole
from rueda.terminal.numbers import NONE, count, digits, milliseconds, number, things

Row = dict[str, float | None]
Cells = list[list[str | tuple[float | None, str]]]


def tell(section: Section, kind: str, answer: Mapping[str, Any]) -> None:
    """Add to a section what a study found: a sentence and a table.

    Args:
        section: of the study's folder.
        kind: ``throughput``, ``steps-to-target`` or ``gd``.
        answer: what its file says.
    """
    {"throughput": _throughput, "steps-to-target": _steps, "gd": _descent}[kind](section, answer)


def _throughput(section: Section, answer: Mapping[str, Any]) -> None:
    rows = rows_of(answer["points"], ("images_per_second", "spread", "milliseconds_per_update"), "images_per_second")
    end = number(answer.get("saturates_at"))
    if rows and end:
        section.told.append(f"There are hardly more images a second beyond a local batch of {count(end)}.")
    cells: Cells = []
    for row in rows:
        speed, time = row["images_per_second"], row["milliseconds_per_update"]
        cells.append(
            [
                (row["batch"], count(row["batch"])),
                (speed, _with_spread(speed, row["spread"])),
                (time, NONE if time is None else milliseconds(time / 1e3)),
            ]
        )
    if cells:
        section.tables.append(
            Table(
                title="Throughput against local batch", heads=["local batch", "images/s", "an update"], rows=cells,
                note="± is the spread over repeats, on this machine.",
            )
        )  # fmt: skip


def _steps(section: Section, answer: Mapping[str, Any]) -> None:
    target = number(answer.get("target_accuracy"))
    where = "the target" if target is None else f"{100 * target:.3g} % test accuracy"
    rows = rows_of(answer["points"], ("rate", "updates", "examples", "num_seeds"), "updates")
    fit = answer.get("fit")
    critical = number(fit.get("critical_batch")) if isinstance(fit, Mapping) else None
    if rows and critical:
        ends = numbers(fit.get("interval")) if isinstance(fit, Mapping) else []
        between = (
            f" ({count(whole(ends[0]))} to {count(whole(ends[1]))})" if len(ends) == 2 and None not in ends else ""
        )
        section.told.append(f"To {where} the critical batch size is about {count(whole(critical))}{between}.")
    cells: Cells = []
    for row in rows:
        cells.append(
            [
                (row["batch"], count(row["batch"])),
                (row["rate"], digits(row["rate"])),
                (row["updates"], count(whole(row["updates"]))),
                (row["examples"], count(whole(row["examples"]))),
                (row["num_seeds"], count(row["num_seeds"])),
            ]
        )
    if cells:
        section.tables.append(
            Table(
                title=f"Updates to {where}", heads=["batch", "best rate", "updates", "examples", "seeds"], rows=cells,
                note="The rate was tuned at each batch size; means over the seeds.",
            )
        )  # fmt: skip


def _descent(section: Section, answer: Mapping[str, Any]) -> None:
    names = ("epochs", "updates", "w", "b", "loss")
    rows = rows_of(answer["rows"], (*names, *(f"{name}_spread" for name in names)), "updates")
    if not rows:
        return
    if len(rows) > 1:
        small, large = rows[0], rows[-1]
        section.told.append(
            f"Gradient descent on the linear model takes {count(small['updates'])} updates in {count(small['epochs'])} "
            f"epochs with batch {count(small['batch'])}, and {count(large['updates'])} in {count(large['epochs'])} "
            f"with batch {count(large['batch'])}."
        )
    cells: Cells = []
    for row in rows:
        line: list[str | tuple[float | None, str]] = [(row["batch"], count(row["batch"]))]
        line += [(row[name], _with_spread(row[name], row[f"{name}_spread"])) for name in names]
        cells.append(line)
    seeds = whole(answer.get("seeds"))
    over = "" if seeds is None else f"Means over {things(seeds, 'seed')}. "
    rate = number(answer.get("rate"))
    note = over + "± is the spread over seeds." + ("" if rate is None else f" Rate {rate:g}.")
    section.tables.append(
        Table(title="Gradient descent on the linear model", heads=["batch", *names], rows=cells, note=note)
    )


def rows_of(listed: list[Any], names: tuple[str, ...], needed: str) -> list[Row]:
    """Take the rows with a batch and what else is needed, the smallest batch first."""
    found = [row for row in listed if isinstance(row, dict)]
    rows: list[Row] = [{name: number(row.get(name)) for name in ("batch", *names)} for row in found]
    kept = [row for row in rows if (row["batch"] or 0) > 0 and row[needed] is not None]
    return sorted(kept, key=lambda row: row["batch"] or 0)


def _with_spread(value: float | None, spread: float | None) -> str:
    """Write a mean up to the second digit of its spread.

    >>> _with_spread(10.0589, 0.25307), _with_spread(2901.38, 479.9), _with_spread(470.0, None), _with_spread(None, 1.0)
    ('10.06 ± 0.25', '2,901 ± 480', '470', '–')
    """
    if value is None or not spread or spread < 1e-9:
        return digits(value)
    places = max(0, 1 - math.floor(math.log10(spread)))
    return f"{value:,.{places}f} ± {spread:,.{places}f}"
