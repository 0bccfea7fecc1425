"""Updates to a target against the batch size: the curve, its three regimes, a stored measurement and one made here."""

from __future__ import annotations

from functools import cache

from rueda.labs import stored
from rueda.records.batch_curve import BatchCurve
from rueda.records.metric import LOSS
from rueda.records.steps_to_target import BatchPoint, StepsToTarget
from rueda.report.figures.steps import steps
from rueda.report.model import Table
from rueda.report.plot import Plot
from rueda.report.study_tables import steps_table

STORED = "steps-fashion-mnist"
CURVE_BATCHES = tuple(2**power for power in range(3, 17))
LINEAR_BATCHES = (1, 2, 4, 8, 16, 32, 64)


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
    rows = [
        [(size, f"{size:,}"), regime, (updates, f"{updates:,.0f}"), (size * updates, f"{size * updates:,.0f}")]
        for size, regime, updates in needed
    ]
    saved = 1 - needed[1][2] / needed[0][2]
    return Table(
        title="", heads=["batch", "regime", "updates", "examples"], rows=[list(row) for row in rows],
        note=f"Twice the batch saves {saved:.0%} of the updates.",
    )  # fmt: skip


def stored_figure() -> list[Plot | Table]:
    """Draw the steps to 82 % on Fashion-MNIST that this project measured, with the rate tuned at every batch."""
    return _figure(stored.load(StepsToTarget, STORED))


@cache
def linear_steps(target: float) -> StepsToTarget:
    """Count the updates of the linear model to a loss, at seven batch sizes, each with its best rate."""
    from rueda.study.steps_to_target import study_steps_to_target

    return study_steps_to_target(
        "linear", target=float(target), target_metric="loss", batches=LINEAR_BATCHES, epochs=60
    )  # fmt: skip


def linear_figure(target: float) -> list[Plot | Table]:
    """Draw the steps of the linear model to a loss."""
    return _figure(linear_steps(target))


def _figure(found: StepsToTarget) -> list[Plot | Table]:
    plot = steps(found)
    plot.half = False
    return [plot, steps_table(found)]
