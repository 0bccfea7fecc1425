"""The largest stable learning rate, from the curvature of the loss that the library computes."""

from __future__ import annotations

import math
from functools import lru_cache

from rueda.labs.lab_1.line import the_points
from rueda.labs.lab_1.paths import descent
from rueda.labs.showing import Drawn, Text
from rueda.records.curvature import HessianResult, contraction, largest_stable_rate
from rueda.report.model import short
from rueda.report.plot import Plot
from rueda.study.gradient_descent import NUM_POINTS
from rueda.terminal.numbers import digits


@lru_cache(maxsize=256)
def curvature(first: int = 0, last: int = NUM_POINTS) -> HessianResult:
    """Compute the Hessian of the mean squared error over the points from ``first`` to ``last``, by Lanczos.

    >>> found = curvature()
    >>> len(found.eigenvalues), found.converged
    (2, True)
    """
    import torch

    from rueda.examine import Objective, hessian
    from rueda.tasks.models import Line
    from rueda.tasks.task import squared_error

    data = the_points()
    x, y = (torch.tensor(values[first:last], dtype=torch.float64) for values in (data.x, data.y))
    objective = Objective(Line().double(), squared_error, x, y)
    return hessian(objective, num_eigenvalues=2, tolerance=1e-8, trace=False, density=False)


def stable_rate() -> float:
    """Return the largest stable rate of gradient descent on all points.

    >>> 0.02 < stable_rate() < 0.04
    True
    """
    return _rate(curvature())


def _rate(found: HessianResult) -> float:
    return largest_stable_rate(found.largest) or math.inf


def at_rate(share: float) -> list[Drawn]:
    """Draw the loss of gradient descent on all points at a rate, given as a share of the largest stable one."""
    rate = share * stable_rate()
    found = descent(NUM_POINTS, rate)
    path, row = found.paths[0], found.rows[0]
    shown = min(len(path.loss), 60)
    colour = "@red" if row.diverged else "@blue"
    plot = Plot(
        name="at-rate", title=f"Rate {rate:.4f}: {'diverges' if row.diverged else 'converges'}",
        traces=[{"x": list(range(shown)), "y": [short(loss) for loss in path.loss[:shown]], "mode": "lines+markers",
                 "line": {"color": colour, "width": 2}, "marker": {"size": 5, "color": colour},
                 "hovertemplate": "update %{x}: loss %{y:.4g}"}],
        layout={"xaxis": {"title": "updates", "range": [0, 60]},
                "yaxis": {"title": "loss", "type": "log", "dtick": 1, "range": [1.8, 6.7]}},
        note="All 100 points in each update. The loss is on a logarithmic scale.", height=340,
    )  # fmt: skip
    return [plot, _words(rate, row.diverged > 0)]


def _words(rate: float, diverged: bool) -> Text:
    steep, gentle = (one.value for one in curvature().eigenvalues)
    factors = [contraction(rate, value) for value in (steep, gentle)]
    end = "grows" if diverged else "shrinks"
    return Text(
        f"The Hessian has the eigenvalues {digits(steep)} and {digits(gentle)}. An update multiplies the distance to "
        f"the minimum by {factors[0]:+.2f} along the steep direction and by {factors[1]:+.3f} along the valley: "
        f"it {end}."
    )


def rate_by_batch(batch: int) -> list[Drawn]:
    """Draw the largest stable rate of every single batch of an epoch."""
    starts = range(0, NUM_POINTS, batch)
    rates = [_rate(curvature(start, min(start + batch, NUM_POINTS))) for start in starts]
    whole = stable_rate()
    plot = Plot(
        name="rate-by-batch", title=f"Batch {batch}: the steepest of {len(rates)} allows {min(rates):.4f}",
        traces=[
            {"x": list(range(1, len(rates) + 1)), "y": [short(min(rate, 1.0)) for rate in rates], "mode": "markers",
             "marker": {"color": "@orange", "size": 7}, "hovertemplate": "batch number %{x}: %{y:.4f}"},
            {"x": [0.5, len(rates) + 0.5], "y": [short(whole)] * 2, "mode": "lines", "hoverinfo": "skip",
             "line": {"color": "@blue", "width": 2, "dash": "dash"}},
        ],
        layout={"xaxis": "number of the batch in its epoch",
                "yaxis": {"title": "largest stable rate", "type": "log", "dtick": 1, "range": [-2.2, 0.1]}},
        note=f"Dots: 2 / largest eigenvalue of each batch alone. Dashed: of all points, {whole:.4f}.", height=340,
    )  # fmt: skip
    return [plot]
