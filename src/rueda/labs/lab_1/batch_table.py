"""Epochs, updates and time of each batch size: means over seeds, and the time on this machine."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import NamedTuple

from rueda.labs.lab_1.paths import updates_per_epoch
from rueda.labs.showing import Drawn, Text
from rueda.records.descent import DescentRow
from rueda.report.model import Table
from rueda.report.plot import Plot
from rueda.study.gradient_descent import BATCHES, NUM_POINTS, descend, points
from rueda.terminal.numbers import count, digits, milliseconds

SEEDS = 50


class Timed(NamedTuple):
    """One batch size: the means over the seeds, and the seconds of one training on this machine."""

    row: DescentRow
    seconds: float


@lru_cache(maxsize=1)
def all_batches() -> tuple[Timed, ...]:
    """Train the line at each batch size, through the library: many seeds for the counts, one for the time.

    >>> found = {timed.row.batch: timed for timed in all_batches()}
    >>> found[1].row.epochs < found[8].row.epochs < found[100].row.epochs
    True
    """
    x, y = points(SEEDS)
    found = []
    for batch in BATCHES:
        row, _ = descend(x, y, batch)
        seconds = min(_seconds(batch) for _ in range(3))
        found.append(Timed(row=row, seconds=seconds))
    return tuple(found)


def _seconds(batch: int) -> float:
    x, y = points(1)
    began = time.perf_counter()
    descend(x, y, batch)
    return time.perf_counter() - began


def batch_table() -> Table:
    """Return the table of the batch sizes."""
    columns = {
        "batch": lambda one: (one.row.batch, count(one.row.batch)),
        "epochs": lambda one: (one.row.epochs, digits(one.row.epochs)),
        "updates an epoch": lambda one: (
            updates_per_epoch(NUM_POINTS, one.row.batch), count(updates_per_epoch(NUM_POINTS, one.row.batch))
        ),
        "updates": lambda one: (one.row.updates, digits(one.row.updates)),
        "final loss": lambda one: (one.row.loss, digits(one.row.loss)),
        "w": lambda one: (one.row.w, f"{one.row.w:.2f} ± {one.row.w_spread:.2f}"),
        "time here": lambda one: (one.seconds, milliseconds(one.seconds)),
    }  # fmt: skip
    return Table.of(
        "One line, eight batch sizes", all_batches(), columns,
        f"Rate 0.001; means over {SEEDS} seeds, ± is the spread. Time: one training, the best of three, on this "
        "machine, whose program computes a batch as one array. Click a heading to sort.",
    )  # fmt: skip


def rounds(updates: float, batch: int, at_once: int) -> float:
    """Return the steps in time that a training takes if a machine computes ``at_once`` points at the same time.

    >>> rounds(100, 8, 1), rounds(100, 8, 8), rounds(100, 8, 64)
    (800, 100, 100)
    """
    return updates * math.ceil(batch / at_once)


def time_if_parallel(at_once: int) -> list[Drawn]:
    """Draw the time of each batch size on a machine that computes several points at the same time."""
    found = all_batches()
    batches = [one.row.batch for one in found]
    times = [rounds(one.row.updates, one.row.batch, at_once) for one in found]
    best = min(range(len(found)), key=lambda at: times[at])
    colours = ["@blue" if at == best else "@muted" for at in range(len(found))]
    plot = Plot(
        name="parallel-time", title=f"{count(at_once)} {'point' if at_once == 1 else 'points'} at the same time",
        traces=[{"type": "bar", "x": [str(batch) for batch in batches], "y": [round(one) for one in times],
                 "marker": {"color": colours}, "hovertemplate": "batch %{x}: %{y:,} steps"}],
        layout={"xaxis": {"title": "batch size", "type": "category"},
                "yaxis": {"title": "steps in time", "type": "log", "dtick": 1, "range": [1.5, 4.2]}},
        note="Updates × the rounds that one batch takes; the shortest is blue.", height=320,
    )  # fmt: skip
    return [plot, Text(f"The shortest training has batch **{batches[best]}**: {round(times[best]):,} steps.")]
