"""Fits the curve of updates against batch size (:mod:`rueda.records.batch_curve`) to measured points.

In logarithms the curve S(B) = Smin (1 + Bcrit / B) is

    log S = log Smin + log(1 + Bcrit / B)

so that log Smin is a mean for any given Bcrit, and the fit is a search over one number. Trainings at one batch size
share the learning rate that was tuned for it, so what the tuning got wrong is common to them: they are not independent,
and each batch size counts as one observation, the mean over its seeds.

**Interval.** All Bcrit whose smallest sum of squares SSE is at most

    SSE_min (1 + F / (n - 2)),    F: the 90th percentile of the F distribution with 1 and n - 2 degrees of freedom

for n batch sizes (the profile of the likelihood of normal errors in log S, whose variance is unknown: Bates and Watts
1988, Nonlinear Regression Analysis and Its Applications, section 6.1). Where even a straight line, without the curve's
bend, fits so well, the interval has no end on that side. An interval from a bootstrap of the residuals contains the
truth in only 61 to 82 of 100 cases where 90 are meant, since with few batch sizes the residuals are few, too.

**Lack of fit.** With several seeds, the scatter of the batch sizes about the curve is compared with that of the seeds
about their mean: a small p says that something other than the seeds moves the points, such as a rate that was tuned
better at one batch size than at the next, or another law.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rueda.errors import RunError
from rueda.records.batch_curve import BatchCurve
from rueda.records.steps_to_target import BatchPoint
from rueda.records.student import quantile

Floats = NDArray[np.float64]

_REACH = 8.0
"""how far beyond the measured batch sizes the critical batch is looked for, as a natural logarithm"""
_GRID = 800


def fit_curve(batches: Sequence[float], updates: Sequence[float]) -> BatchCurve:
    """Fit Smin (fewest updates) and Emin (fewest examples) to measured pairs (batch, updates).

    Args:
        batches: batch sizes, at least three different ones; one occurs once for each seed.
        updates: number of updates to the target, for each of ``batches``.

    >>> batches = [16, 64, 256, 1024, 4096]
    >>> curve = fit_curve(batches, [100 * (1 + 400 / batch) for batch in batches])
    >>> round(curve.smallest_updates), round(curve.smallest_examples), round(curve.critical_batch), curve.regime(16)
    (100, 40000, 400, 'perfect scaling')
    """
    measured, steps = np.asarray(batches, dtype=float), np.log(np.asarray(updates, dtype=float))
    sizes = np.unique(measured)
    if len(sizes) < 3:
        raise RunError(f"a curve of two constants needs three batch sizes or more, got {len(sizes)}; add some")
    profile = _Profile(sizes, np.array([steps[measured == size].mean() for size in sizes]))
    best = profile.lowest()
    smallest, critical = np.exp(profile.smallest(best)), np.exp(best)
    return BatchCurve(
        smallest_updates=float(smallest), smallest_examples=float(smallest * critical),
        critical_batch=float(critical), interval=profile.interval(best),
        lack_of_fit=_lack_of_fit(measured, steps, profile, best),
    )  # fmt: skip


class _Profile:
    """The smallest sum of squares of log S for each log Bcrit."""

    def __init__(self, sizes: Floats, steps: Floats) -> None:
        self.sizes, self.steps = sizes, steps
        self.grid = np.linspace(np.log(sizes[0]) - _REACH, np.log(sizes[-1]) + _REACH, _GRID)

    def _beyond(self, critical: float | Floats) -> Floats:
        """Return log S - log(1 + Bcrit / B) at each batch size: log Smin, but for the errors."""
        return np.asarray(self.steps - np.logaddexp(0.0, np.subtract.outer(critical, np.log(self.sizes))))

    def smallest(self, critical: float) -> float:
        """Return the best log Smin for a log Bcrit."""
        return float(self._beyond(critical).mean())

    def squares(self, critical: float | Floats) -> Floats:
        """Return the sum of squares for each log Bcrit."""
        return _scatter(self._beyond(critical))

    def lowest(self) -> float:
        """Return the log Bcrit with the smallest sum of squares."""
        from scipy.optimize import minimize_scalar

        at = int(np.argmin(self.squares(self.grid)))
        low, high = self.grid[max(at - 1, 0)], self.grid[min(at + 1, _GRID - 1)]
        found = minimize_scalar(lambda one: float(self.squares(one)), bounds=(low, high), options={"xatol": 1e-9})
        return float(found.x)

    def interval(self, best: float) -> tuple[float | None, float | None]:
        """Return the ends of the interval of Bcrit; None where it has no end."""
        freedom = len(self.sizes) - 2
        # F with 1 and n degrees of freedom is the square of Student's t with n.
        most = float(self.squares(best)) * (1 + quantile(freedom) ** 2 / freedom)
        flat, falling = _scatter(self.steps), _scatter(self.steps + np.log(self.sizes))
        below, above = self.grid[self.grid < best], self.grid[self.grid > best]
        return (
            None if flat <= most else self._end(most, best, below),
            None if falling <= most else self._end(most, best, above[::-1]),
        )

    def _end(self, most: float, best: float, points: Floats) -> float:
        """Return the Bcrit at which the sum of squares first comes down to a value; ``points`` go towards the best."""
        from scipy.optimize import brentq

        within = np.flatnonzero(self.squares(points) <= most)
        at = int(within[0]) if len(within) else len(points)
        inner = points[at] if len(within) else best
        outer = points[at - 1] if at else inner + np.sign(inner - best) * 100.0
        if float(self.squares(inner)) >= most:  # points that lie exactly on a curve
            return float(np.exp(inner))
        return float(np.exp(brentq(lambda one: float(self.squares(one)) - most, outer, inner)))


def fit_points(points: Sequence[BatchPoint]) -> BatchCurve | None:
    """Fit the curve to the batch sizes at which every seed reached the target, if there are at least three."""
    pairs = [(point.batch, steps) for point in points if point.complete for steps in point.seeds]
    enough = len({batch for batch, _ in pairs}) >= 3
    return fit_curve([batch for batch, _ in pairs], [steps for _, steps in pairs]) if enough else None


def _scatter(values: Floats) -> Floats:
    """Return the sum of squares about the mean, along the last axis."""
    return np.asarray(((values - values.mean(-1, keepdims=True)) ** 2).sum(-1))


def _lack_of_fit(measured: Floats, steps: Floats, profile: _Profile, best: float) -> float | None:
    """Return the p-value of the test described above; None where no batch size has several seeds that differ."""
    from scipy.special import fdtrc

    within = sum(float(_scatter(steps[measured == size])) for size in profile.sizes)
    freedom = len(steps) - len(profile.sizes)
    if freedom == 0 or within == 0:
        return None
    beyond = profile._beyond(best) - profile.smallest(best)
    seeds = np.array([(measured == size).sum() for size in profile.sizes])
    about = float((seeds * beyond**2).sum()) / (len(profile.sizes) - 2)
    return float(fdtrc(len(profile.sizes) - 2, freedom, about / (within / freedom)))
