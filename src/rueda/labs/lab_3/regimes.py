"""Updates to a target against the batch size: the curve, its three regimes, a stored measurement and one made here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from rueda.labs import stored
from rueda.labs.lab_3.small_task import RECIPE, small_glyphs, small_images
from rueda.records.batch_curve import BatchCurve
from rueda.records.metric import LOSS
from rueda.records.steps_to_target import BatchPoint, StepsToTarget
from rueda.report.figures.parts import curve as curve_trace
from rueda.report.figures.parts import log_axis, one_two_five
from rueda.report.figures.steps import steps
from rueda.report.model import Cell, Table
from rueda.report.plot import Plot
from rueda.report.study_tables import steps_table
from rueda.study.critical_batch import fit_points

if TYPE_CHECKING:
    from rueda.tasks import Task

STORED = "steps-fashion-mnist"
CURVE_BATCHES = tuple(2**power for power in range(3, 17))
BATCHES, RATES = (8, 32, 128, 512), (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
"""what is tuned on the small task"""
TARGET, MOST_UPDATES = 0.75, 400


def curve(critical_batch: float, fewest_updates: float = 100.0) -> BatchCurve:
    """Return the curve of a training with this critical batch."""
    return BatchCurve(
        smallest_updates=fewest_updates, smallest_examples=fewest_updates * critical_batch,
        critical_batch=critical_batch, interval=(critical_batch, critical_batch),
    )  # fmt: skip


def curve_figure(critical_batch: int, batch: int) -> list[Plot | Table]:
    """Draw the curve, and say what a batch of this size needs.

    >>> curve_figure(512, 512)[1].texts[0][:3]
    ['512', 'diminishing returns', '200']
    """
    drawn = curve(critical_batch)
    points = tuple(_exact(drawn, size) for size in CURVE_BATCHES)
    plot = steps(
        StepsToTarget(task="any", target=1.0, metric=LOSS, recipe="", epochs=1, points=points, fit=drawn)
    )  # fmt: skip
    chosen = {
        "type": "scatter", "mode": "markers", "x": [batch], "y": [drawn.updates(batch)], "name": "your batch",
        "marker": {"size": 15, "symbol": "star", "color": "@orange"},
        "hovertemplate": "batch %{x:,}: %{y:,.0f} updates",
    }  # fmt: skip
    plot.name, plot.half, plot.title = "regimes", False, "Updates to the target against the batch size"
    plot.layout["yaxis"] = {**plot.layout["yaxis"], "title": "updates to the target"}
    plot.traces = [*(trace for trace in plot.traces if trace["name"] != "measured"), chosen]
    return [plot, batch_table(drawn, batch)]


def _exact(drawn: BatchCurve, batch: int) -> BatchPoint:
    updates = drawn.updates(batch)
    return BatchPoint(
        batch=batch, rate=None, updates=updates, examples=batch * updates, num_seeds=1, seeds=(updates,), tried=()
    )


def batch_table(drawn: BatchCurve, batch: int) -> Table:
    """Return what a batch and twice that batch need."""
    needed = [(size, drawn.regime(size), drawn.updates(size)) for size in (batch, 2 * batch)]
    rows: list[list[Cell]] = [
        [(size, f"{size:,}"), regime, (updates, f"{updates:,.0f}"), (size * updates, f"{size * updates:,.0f}")]
        for size, regime, updates in needed
    ]
    saved = 1 - needed[1][2] / needed[0][2]
    return Table(
        title="", heads=["batch", "regime", "updates", "examples"], rows=rows,
        note=f"Twice the batch saves {saved:.0%} of the updates.",
    )  # fmt: skip


def refitted(num_batches: int) -> list[Plot | Table]:
    """Draw the stored measurement with the curve fitted to its first batch sizes only."""
    found = stored.load(StepsToTarget, STORED)
    points = tuple(sorted(found.points, key=lambda point: point.batch)[:num_batches])
    return _figure(replace(found, points=points, fit=fit_points(points)))


@cache
def updates_at(batch: int, rate: float) -> float | None:
    """Count the updates of the small task to 75 % test accuracy, at a batch size and a rate; None: not reached."""
    from rueda.study.steps_to_target import updates_to_target

    recipe = RECIPE.change(batch=batch, rate=rate)
    reached = updates_to_target(_quickly_tested(), recipe, TARGET, limit=MOST_UPDATES)
    return None if reached is None else reached.updates


@cache
def _quickly_tested() -> Task:
    """Return the small task with few test images, since a search for the rate evaluates often."""
    return replace(small_glyphs(), test=small_images("test", 300))


def tuning_figure(batch: int) -> list[Plot | Table]:
    """Draw the updates to the target against the rate, at one batch size."""
    found = {rate: updates_at(batch, rate) for rate in RATES}
    reached = {rate: updates for rate, updates in found.items() if updates is not None}
    best = min(reached, key=lambda rate: reached[rate], default=None)
    plot = Plot(
        name="tuning", title=f"Updates to {100 * TARGET:.0f} % test accuracy, batch {batch}",
        traces=[
            curve_trace(
                list(reached), list(reached.values()), "@blue", mode="lines+markers", marker={"size": 9},
                name="reached", hovertemplate="rate %{x:.3g}: %{y:,.0f} updates",
            )
        ],
        layout={
            "xaxis": log_axis("learning rate", RATES, tickangle=0, range=_ends(RATES, 1.3)),
            "yaxis": log_axis("updates", one_two_five(5, MOST_UPDATES), range=_ends((5, MOST_UPDATES), 1.1)),
        },
        note=f"Given up after {MOST_UPDATES} updates; a rate without a dot did not get there, or diverged.",
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [(rate, f"{rate:g}"), (updates, "not reached" if updates is None else f"{updates:,.0f}"),
         "fewest" if rate == best else ""]
        for rate, updates in found.items()
    ]  # fmt: skip
    return [plot, Table(title="", heads=["rate", "updates", ""], rows=rows)]


def _ends(values: Sequence[float], room: float) -> list[float]:
    return [math.log10(min(values) / room), math.log10(max(values) * room)]


def _figure(found: StepsToTarget) -> list[Plot | Table]:
    plot = steps(found)
    plot.half = False
    return [plot, steps_table(found)]
