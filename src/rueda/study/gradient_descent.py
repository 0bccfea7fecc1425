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

With a larger rate the training may diverge: the loss grows with every update. A seed whose loss exceeds a thousand
times its initial value is stopped and counted as diverged.

Every seed draws its own points. All seeds are computed together as arrays; a seed whose training has stopped is
not updated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rueda.errors import RecipeError
from rueda.records.descent import MEASURED, DescentPath, DescentRow, GradientDescent, Points
from rueda.records.environment import environment
from rueda.records.recipe.batches import check_batches, check_counts
from rueda.records.study import mean_and_spread

NUM_POINTS = 100
BATCHES = (1, 2, 4, 8, 16, 32, 64, 100)
RATE = 1e-3
NOISE = 1.0
"""standard deviation of the noise, which the slope multiplies by 10"""
_TOLERANCE = 1e-3  # relative change of the mean loss below which the training stops
MOST_EPOCHS = 1000
_LONGEST_PATH = 5_000
_DIVERGED = 1e3  # times the initial loss

Floats = NDArray[np.float64]


def points(num_seeds: int, *, seed: int = 0, noise: float = NOISE) -> tuple[Floats, Floats]:
    """Draw x and y for each seed; both arrays have the shape [seeds, points]."""
    draws = [np.random.default_rng([seed, number]) for number in range(num_seeds)]
    x = np.stack([10 * draw.random(NUM_POINTS) for draw in draws])
    drawn = np.stack([draw.standard_normal(NUM_POINTS) for draw in draws])
    return x, 10 * (x + noise * drawn) + 2


def gradient(x: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Return the gradient of the mean squared error over a batch, by w and by b: 2 mean(x error), 2 mean(error).

    Args:
        x: [seeds, batch].
        error: w x + b - y, [seeds, batch].

    >>> w, b = gradient(np.array([[1.0, 3.0]]), np.array([[-2.0, 4.0]]))
    >>> w.tolist(), b.tolist()
    ([10.0], [2.0])
    """
    return 2 * (error * x).mean(1), 2 * error.mean(1)


def descend(
    x: Floats, y: Floats, batch: int, *, rate: float = RATE, most_epochs: int = MOST_EPOCHS
) -> tuple[DescentRow, DescentPath]:
    """Fit a line to the points of each seed by gradient descent.

    Args:
        x: [seeds, points].
        y: [seeds, points].
        batch: points in one update.
        rate: the learning rate.
        most_epochs: when to stop at the latest.

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
    going, diverged = np.ones(num_seeds, dtype=bool), np.zeros(num_seeds, dtype=bool)
    highest = _DIVERGED * (y**2).mean(1)
    path = [(0.0, 0.0)]
    for _ in range(most_epochs):
        losses = np.zeros(num_seeds)
        for start in range(0, num_points, batch):
            part = x[:, start : start + batch]
            error = w[:, None] * part + b[:, None] - y[:, start : start + batch]
            losses += (error**2).sum(1)
            by_w, by_b = gradient(part, error)
            w = w - going * rate * by_w
            b = b - going * rate * by_b
            updates += going
            if going[0]:
                path.append((float(w[0]), float(b[0])))
        losses /= num_points
        epochs += going
        with np.errstate(invalid="ignore"):
            going &= ~(np.abs(losses - before) < _TOLERANCE * before)
        diverged |= going & (losses > highest)
        going &= ~diverged
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
    end = next((at for at, loss in enumerate(along, 1) if loss > highest[0]), len(along))
    row = DescentRow(batch=batch, diverged=int(diverged.sum()), **means)
    return row, DescentPath(batch=batch, w=ws[:end], b=bs[:end], loss=along[:end])


def study_gradient_descent(
    *,
    batches: Sequence[int] = BATCHES,
    seeds: int = 200,
    rate: float = RATE,
    noise: float = NOISE,
    most_epochs: int = MOST_EPOCHS,
    seed: int = 0,
    folder: Path | str | None = None,
) -> GradientDescent:
    """Compare batch sizes, as ``rueda gradient-descent`` does, and write ``gd.json`` into the folder.

    Args:
        batches: points in one update, each from 1 to 100.
        seeds: how often the points are drawn and the line is fitted.
        rate: the learning rate.
        noise: the standard deviation of the noise within the slope.
        most_epochs: when a training stops at the latest.
        seed: seed of all random numbers.
        folder: where to write; None writes nothing.
    """
    check_counts(seeds=seeds, most_epochs=most_epochs)
    check_batches(batches, NUM_POINTS)
    if not (math.isfinite(rate) and rate > 0):
        raise RecipeError("rate", expected="a positive number", got=rate, do="correct it")
    if not (math.isfinite(noise) and noise >= 0):
        raise RecipeError("noise", expected="0 or more", got=noise, do="correct it")
    x, y = points(seeds, seed=seed, noise=noise)
    found = [descend(x, y, batch, rate=rate, most_epochs=most_epochs) for batch in batches]
    result = GradientDescent(
        seeds=seeds, rate=rate, noise=noise, environment=environment(),
        data=Points(x=tuple(x[0].tolist()), y=tuple(y[0].tolist())),
        rows=tuple(row for row, _ in found), paths=tuple(path for _, path in found),
    )  # fmt: skip
    if folder is not None:
        result.save(Path(folder) / GradientDescent.FILE)
    return result
