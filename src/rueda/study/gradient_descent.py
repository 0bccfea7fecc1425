"""Gradient descent on a linear model with two parameters, for batch sizes from one example to all of them.

The data are 100 points with x ~ U(0, 10) and y = 10 (x + noise) + 2, noise ~ N(0, 1). The noise is multiplied by the
slope, so that the standard deviation of y about the line is 10 and the lowest mean squared error about 98. The
model w x + b starts at w = b = 0 and follows the gradient of its mean squared error over a batch, with learning rate
0.001:

    w <- w - rate * 2 mean(x (w x + b - y)),    b <- b - rate * 2 mean(w x + b - y)

An epoch visits all points in the order in which they were drawn; the last batch may be smaller. The training stops when
the mean loss of an epoch (computed on each batch before its update) differs by less than 0.1 % from that of the epoch
before, and after 1000 epochs at the latest. (The order is not shuffled on purpose: with a new order in every epoch,
chance alone changes the loss at batch size 1 by more than 0.1 %, and the training takes 28 epochs instead of 5.)

Every seed draws its own points. All seeds are computed together as arrays; a seed whose training has stopped is
not updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rueda.records.descent import MEASURED, DescentPath, DescentRow, GradientDescent, Points
from rueda.records.environment import environment
from rueda.records.recipe.batches import check_batches, check_counts
from rueda.records.study import mean_and_spread

NUM_POINTS = 100
BATCHES = (1, 2, 4, 8, 16, 32, 64, 100)
RATE = 1e-3
_TOLERANCE = 1e-3  # relative change of the mean loss below which the training stops
_MOST_EPOCHS = 1000
_LONGEST_PATH = 5_000

Floats = NDArray[np.float64]


def points(num_seeds: int, *, seed: int = 0) -> tuple[Floats, Floats]:
    """Draw x and y for each seed; both arrays have the shape [seeds, points]."""
    draws = [np.random.default_rng([seed, number]) for number in range(num_seeds)]
    x = np.stack([10 * draw.random(NUM_POINTS) for draw in draws])
    noise = np.stack([draw.standard_normal(NUM_POINTS) for draw in draws])
    return x, 10 * (x + noise) + 2


def descend(x: Floats, y: Floats, batch: int) -> tuple[DescentRow, DescentPath]:
    """Fit a line to the points of each seed by gradient descent.

    Args:
        x: [seeds, points].
        y: [seeds, points].
        batch: points in one update.

    Returns:
        the means and standard deviations over the seeds, and the parameters of the first seed after each update.

    >>> x, y = points(20)
    >>> whole, single = descend(x, y, 100)[0], descend(x, y, 1)[0]
    >>> whole.updates == whole.epochs, single.updates > 5 * whole.updates, single.epochs < whole.epochs / 5
    (True, True, True)
    """
    num_seeds, num_points = x.shape
    w, b = np.zeros(num_seeds), np.zeros(num_seeds)
    before = np.full(num_seeds, np.inf)
    epochs, updates = np.zeros(num_seeds), np.zeros(num_seeds)
    going = np.ones(num_seeds, dtype=bool)
    path = [(0.0, 0.0)]
    for _ in range(_MOST_EPOCHS):
        losses = np.zeros(num_seeds)
        for start in range(0, num_points, batch):
            part = x[:, start : start + batch]
            error = w[:, None] * part + b[:, None] - y[:, start : start + batch]
            losses += (error**2).sum(1)
            w = w - going * RATE * 2 * (error * part).mean(1)
            b = b - going * RATE * 2 * error.mean(1)
            updates += going
            if going[0]:
                path.append((float(w[0]), float(b[0])))
        losses /= num_points
        epochs += going
        with np.errstate(invalid="ignore"):
            going &= ~(np.abs(losses - before) < _TOLERANCE * before)
        before = losses
        if not going.any():
            break
    loss = ((w[:, None] * x + b[:, None] - y) ** 2).mean(1)
    means: dict[str, float] = {}
    for name, values in zip(MEASURED, (epochs, updates, w, b, loss), strict=True):
        mean, spread = mean_and_spread(values.tolist())
        means |= {name: mean or 0.0, f"{name}_spread": spread or 0.0}
    ws, bs = zip(*path[:_LONGEST_PATH], strict=True)
    along = tuple(float(((one * x[0] + other - y[0]) ** 2).mean()) for one, other in zip(ws, bs, strict=True))
    return DescentRow(batch=batch, **means), DescentPath(batch=batch, w=ws, b=bs, loss=along)


def study_gradient_descent(
    *, batches: Sequence[int] = BATCHES, seeds: int = 200, seed: int = 0, folder: Path | str | None = None
) -> GradientDescent:
    """Compare batch sizes, as ``rueda gradient-descent`` does, and write ``gd.json`` into the folder.

    Args:
        batches: points in one update, each from 1 to 100.
        seeds: how often the points are drawn and the line is fitted.
        seed: seed of all random numbers.
        folder: where to write; None writes nothing.
    """
    check_counts(seeds=seeds)
    check_batches(batches, NUM_POINTS)
    x, y = points(seeds, seed=seed)
    found = [descend(x, y, batch) for batch in batches]
    result = GradientDescent(
        seeds=seeds, rate=RATE, environment=environment(), data=Points(x=tuple(x[0].tolist()), y=tuple(y[0].tolist())),
        rows=tuple(row for row, _ in found), paths=tuple(path for _, path in found),
    )  # fmt: skip
    if folder is not None:
        result.save(Path(folder) / GradientDescent.FILE)
    return result
