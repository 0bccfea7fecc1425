"""The gradient noise scale: measured in a training, and what it says about the worth of an example."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rueda.labs import stored
from rueda.labs.lab_3.small_task import RECIPE, train
from rueda.optim.noise_scale import Estimator
from rueda.plan.noise import statistical_efficiency, updates_needed
from rueda.report.figures.noise_scale import add_noise_scale
from rueda.report.figures.parts import curve, log_axis, thinned, upright
from rueda.report.model import Cell, Entry, Line, Section, Table
from rueda.report.plot import Plot
from rueda.terminal.numbers import count, percent

STORED = "noise-fashion-mnist"
BATCHES = tuple(2**power for power in range(5, 15))
BASE_BATCH = 32


class TwoGradients(NamedTuple):
    """What two workers know after one step: the squared norms of their own gradients and of the average."""

    own_square_norms: tuple[float, float]
    mean_square_norm: float
    local_batch: int


EXAMPLE = TwoGradients(own_square_norms=(5.0, 5.0), mean_square_norm=3.0, local_batch=8)


def noise_scale(steps: Sequence[TwoGradients]) -> float:
    """Return the noise scale of some steps, by the library's estimator.

    >>> noise_scale([EXAMPLE])
    32.0
    """
    estimator = Estimator()
    for step in steps:
        estimator.observe(
            sum(step.own_square_norms), step.mean_square_norm, num_parts=2, examples_per_part=step.local_batch
        )
    return estimator.estimate(step=len(steps)).value


def measured(batch: int) -> Line:
    """Train the small task at a batch size, with the noise scale measured at every second update."""
    recipe = RECIPE.change(batch=batch, noise_scale_every=2, noise_scale_memory=60)
    return train(recipe, f"one worker, batch {batch}")


def stored_line() -> Line:
    """Return the noise scale of the stored training on Fashion-MNIST as a line of the report."""
    found = stored.contents(STORED)
    return Line(name="one worker, batch 64", task=found["task"], noise=found["columns"])


def measured_figure(batch: int) -> Plot:
    """Draw the noise scale along a training of the small task."""
    return _figure(measured(batch), "small glyphs")


def stored_figure() -> Plot:
    """Draw the noise scale along the stored training on Fashion-MNIST."""
    return _figure(stored_line(), "Fashion-MNIST")


def _figure(line: Line, task: str) -> Plot:
    section = Section(title="", task=line.task, lines=[line], entries=[Entry(name=line.name)])
    add_noise_scale(section)
    plot = section.plots[0]
    plot.title = f"The gradient noise scale along a training: {task}"
    return plot


def efficiency_figure(noise_scale: int) -> list[Plot | Table]:
    """Draw the worth of an example against the batch for one noise scale, and the updates that are left."""
    worth = [statistical_efficiency(batch, BASE_BATCH, noise_scale) for batch in BATCHES]
    updates = [updates_needed(batch, BASE_BATCH, 1.0, noise_scale) for batch in BATCHES]
    told = "batch %{x:,}: %{y:.1%}"
    plot = Plot(
        name="efficiency", title="What an example is worth, and how many updates are left",
        traces=[
            curve(BATCHES, worth, "@orange", mode="lines+markers", name="worth of an example", hovertemplate=told),
            curve(BATCHES, updates, "@blue", mode="lines+markers", name="updates needed", hovertemplate=told),
        ],
        layout={
            "xaxis": log_axis("global batch", BATCHES, tickangle=0),
            "yaxis": {"title": f"relative to batch {BASE_BATCH}", "tickformat": ".0%", "range": [0, 1.05]},
            "shapes": [upright(noise_scale)], "showlegend": True, "margin": {"l": 56, "r": 16, "t": 32, "b": 48},
            "annotations": [
                {"x": math.log10(noise_scale), "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
                 "text": f"noise scale {count(noise_scale)}", "font": {"color": "@red-text"}}
            ],
        },
        narrow={"xaxis": log_axis("global batch", thinned(BATCHES, 4), tickangle=0)},
        note="At the noise scale an example is worth about half of one in a tiny batch, and the updates are about "
        "twice the fewest possible.",
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [(batch, f"{batch:,}"), (one, percent(one)), (other, percent(other))]
        for batch, one, other in zip(BATCHES, worth, updates, strict=True)
    ]
    heads = ["global batch", "worth of an example", "updates needed"]
    return [plot, Table(title="", heads=heads, rows=rows[::3])]
