"""The path of gradient descent on the loss surface, for any batch size, rate and noise."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rueda.labs.showing import Drawn, Text
from rueda.records.descent import DescentPath, GradientDescent
from rueda.report.figures.linear_model import contours, surface
from rueda.report.plot import Plot
from rueda.study.gradient_descent import MOST_EPOCHS, NOISE, NUM_POINTS, RATE, study_gradient_descent
from rueda.terminal.numbers import digits, things

MOST_UPDATES = 3_000
LONGEST = 300
"""the most points of a drawn path: a longer one is thinned out, its first part less"""


def updates_per_epoch(num_points: int, batch: int) -> int:
    """Return the number of updates in an epoch, the last and perhaps smaller batch included.

    >>> [updates_per_epoch(100, batch) for batch in (1, 8, 100)]
    [100, 13, 1]
    """
    return math.ceil(num_points / batch)


@lru_cache(maxsize=512)
def descent(batch: int, rate: float = RATE, noise: float = NOISE) -> GradientDescent:
    """Train the line once, through the library; a training that never settles is ended after 3,000 updates or so."""
    return study_gradient_descent(batches=[batch], seeds=1, rate=rate, noise=noise, most_epochs=_most_epochs(batch))


def _most_epochs(batch: int) -> int:
    return min(MOST_EPOCHS, math.ceil(MOST_UPDATES / updates_per_epoch(NUM_POINTS, batch)))


def thinned(path: DescentPath) -> DescentPath:
    """Leave out points of a long path: the first third stays whole, then every second, fourth, ... one is kept.

    >>> long = DescentPath(batch=1, w=tuple(range(1000)), b=tuple(range(1000)), loss=tuple(range(1000)))
    >>> len(thinned(long).w) <= LONGEST, thinned(long).w[:3], thinned(long).w[-1]
    (True, (0, 1, 2), 999)
    """
    length = len(path.w)
    if length <= LONGEST:
        return path
    head = LONGEST // 3
    step = -(-(length - head) // (LONGEST - head - 1))
    kept = [*range(head), *range(head, length - 1, step), length - 1]
    w, b, loss = (tuple(values[at] for at in kept) for values in (path.w, path.b, path.loss))
    return replace(path, w=w, b=b, loss=loss)


def descent_paths(batch: int, rate: float, noise: float) -> list[Drawn]:
    """Draw the surface with the path, the same from above, and say how the training ended."""
    found = descent(batch, rate, noise)
    shown = replace(found, paths=tuple(map(thinned, found.paths)))
    above = replace(contours(shown), title="The same from above", note="The cross-section of the valley is an ellipse.")
    note = "Drag to turn. The height is on a logarithmic scale."
    return [replace(_from_afar(surface(shown)), note=note), above, _outcome(found)]


def _from_afar(plot: Plot) -> Plot:
    """Move the camera back: beside its neighbour the figure is narrow, and its left axis would be cut off."""
    scene: dict[str, Any] = plot.layout["scene"]
    camera = {**scene["camera"], "eye": {"x": 0.36, "y": -2.0, "z": 1.4}}
    return replace(plot, layout={**plot.layout, "scene": {**scene, "camera": camera}})


def _outcome(found: GradientDescent) -> Text:
    row = found.rows[0]
    kind = {1: "SGD, one point at a time", NUM_POINTS: "gradient descent, all points"}.get(row.batch, "mini-batches")
    if row.diverged:
        ended = f"**diverged** after {things(row.updates, 'update')}: the loss grew instead of falling."
    elif row.epochs >= _most_epochs(row.batch):
        ended = f"did not settle, and was ended after {things(row.epochs, 'epoch')}; loss {digits(row.loss)}."
    else:
        ended = (
            f"stopped after **{things(row.epochs, 'epoch')}** and **{things(row.updates, 'update')}** at "
            f"w = {row.w:.2f}, b = {row.b:.2f}, loss {digits(row.loss)}."
        )
    return Text(f"Batch {row.batch} ({kind}): {ended}")
