"""The power laws that fit a learning curve nearly as well as the best one, and the range of any number over them.

With the residuals r = errors - alpha m^beta - gamma and the covariance V of the errors, the misfit of a law is

    chi-squared = r' V^-1 r,    alpha >= 0,  beta < 0,  gamma >= 0

A *profile-likelihood* interval at the level 1 - a contains every value of a number (an exponent, an error at some size)
that some law has whose misfit is at most

    smallest misfit + q s^2,    q: the quantile of F with 1 and f degrees of freedom (Bates and Watts 1988, section 6.1)

where s^2 is the scale of V and f the degrees of freedom with which it is known. So one set of laws has all intervals,
and an interval of the examples that a target needs is the band of the error, read sideways.

**The floor.** gamma cannot be negative, and where it truly is 0 the interval of another number, say of beta, covers no
longer exactly 1 - a: the differences of misfits are a mixture of chi-squared with 1 and 2 degrees of freedom (Andrews
2001; Self and Liang 1987). In the worst case, a beta that is known almost entirely by gamma, 93.8 % remain of 95, and
gamma itself, which can be missed on one side only, is held in 97.5 %.

**How the range is found.** For each beta the misfit is a quadratic form in alpha and gamma, so the laws are those of an
ellipse, cut at the axes. An error, alpha m^beta + gamma, is linear in both: its extremes lie where the ellipse touches
a line of equal error, or where it meets an axis, which are closed forms. What remains is a search over beta.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_GRID = -np.geomspace(0.01, 3.0, 400)
"""the exponents that are considered"""
_FINE = 201
_FARTHEST = 600.0
"""how far above the largest size the examples for a target are looked for, as a natural logarithm"""


class Misfit:
    """The misfit of power laws to the mean errors at some sizes.

    Alpha is that of sizes divided by the largest, so that no power overflows.

    Args:
        sizes: sizes of the training sets.
        errors: the mean error at each size.
        root: the Cholesky factor of their covariance, [sizes, sizes].
    """

    def __init__(self, sizes: Floats, errors: Floats, root: Floats) -> None:
        self.largest_size = float(sizes.max())
        self._sizes = sizes / self.largest_size
        self._whiten = np.linalg.inv(root).T  # [sizes, sizes]; makes the noise independent, of variance 1
        self._ones = np.ones_like(sizes) @ self._whiten
        self._errors = errors @ self._whiten
        self.one, self._y1 = float(self._ones @ self._ones), float(self._ones @ self._errors)
        self.on_grid = self.best(_GRID)[2]
        """the smallest misfit at each exponent of the grid"""

    def sums(self, betas: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the whitened powers [betas, sizes], and their products with themselves, with 1 and with the errors."""
        powers = self._sizes ** betas[:, None] @ self._whiten
        return powers, (powers**2).sum(1), powers @ self._ones, powers @ self._errors

    def free(self, sums: tuple[Floats, Floats, Floats, Floats]) -> tuple[Floats, Floats]:
        """Return the best alpha and gamma of each beta, negative ones included."""
        _, xx, x1, xy = sums
        determinant = np.maximum(xx * self.one - x1**2, 1e-300)
        alpha = (xy * self.one - x1 * self._y1) / determinant
        return alpha, (xx * self._y1 - x1 * xy) / determinant

    def best(self, betas: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the best alpha and gamma of each beta, and their misfit.

        A constant that would be negative is set to 0, and the other one is fitted alone.
        """
        sums = powers, xx, _, xy = self.sums(betas)
        alpha, gamma = self.free(sums)
        alpha, gamma = np.where(gamma < 0, np.maximum(xy / xx, 0), alpha), np.maximum(gamma, 0)
        gamma, alpha = np.where(alpha < 0, max(self._y1 / self.one, 0), gamma), np.maximum(alpha, 0)
        return alpha, gamma, self.of(powers, alpha, gamma)

    def at(self, beta: float) -> float:
        """Return the smallest misfit at an exponent."""
        return float(self.best(np.array([beta]))[2][0])

    def lowest(self) -> float:
        """Return the exponent with the smallest misfit."""
        from scipy.optimize import minimize_scalar

        at = int(self.on_grid.argmin())
        ends = _GRID[min(at + 1, len(_GRID) - 1)], _GRID[max(at - 1, 0)]
        found = minimize_scalar(self.at, bounds=ends, method="bounded", options={"xatol": 1e-7})
        return float(found.x if found.fun < self.on_grid[at] else _GRID[at])

    def of(self, powers: Floats, alpha: Floats, gamma: Floats) -> Floats:
        """Return the misfit of laws with these whitened powers, [n, sizes]."""
        residuals = self._errors - alpha[:, None] * powers - gamma[:, None] * self._ones
        return np.asarray((residuals**2).sum(1))


class LikelyLaws:
    """All laws whose misfit is at most a limit.

    Args:
        misfit: the misfit of any law.
        beta: the exponent of the best law.
        limit: the largest misfit, above that of the best law.

    >>> sizes = np.array([100.0, 200, 400, 800, 1600, 3200])
    >>> misfit = Misfit(sizes, 2 * sizes**-0.4 + 0.05, 0.002 * np.eye(6))
    >>> laws = LikelyLaws(misfit, misfit.lowest(), 3.84)
    >>> [round(float(end), 3) for end in (*laws.betas[[0, -1]], *laws.gammas(), *laws.errors(12_800))]
    [-0.442, -0.359, 0.03, 0.066, 0.089, 0.102]
    """

    def __init__(self, misfit: Misfit, beta: float, limit: float) -> None:
        self._misfit, self._limit = misfit, limit
        steeper, flatter = np.flatnonzero(beta > _GRID), np.flatnonzero(beta < _GRID)[::-1]
        ends = self._end(beta, steeper), self._end(beta, flatter)
        self.betas: Floats = np.unique([*np.linspace(*ends, _FINE), beta])
        """[n]: exponents of such laws, the steepest first"""
        sums = powers, self._xx, self._x1, _ = misfit.sums(self.betas)
        self._alpha, self._gamma = misfit.free(sums)
        misfits = misfit.of(powers, self._alpha, self._gamma)
        self._determinant = np.maximum(self._xx * misfit.one - self._x1**2, 1e-300)
        # Rounding must not exclude the ends themselves.
        self._exist = misfits <= limit * (1 + 1e-9)
        self._slack = np.maximum(limit - misfits, 0)

    def alphas(self) -> tuple[float, float]:
        """Return the smallest and the largest alpha."""
        return self._range(self._misfit.largest_size**-self.betas, 0.0)

    def gammas(self) -> tuple[float, float]:
        """Return the smallest and the largest gamma."""
        return self._range(np.zeros_like(self.betas), 1.0)

    def errors(self, size: float) -> tuple[float, float]:
        """Return the smallest and the largest error at a size."""
        return self._range((size / self._misfit.largest_size) ** self.betas, 1.0)

    def examples(self, target: float) -> tuple[float, float]:
        """Return the smallest and the largest size at which some law has this error; infinite if there is none."""
        return self._crossings(target, 1.0)

    def halves(self) -> tuple[float, float]:
        """Return the smallest and the largest size at which gamma is half of the error; infinite if it is never."""
        return self._crossings(0.0, -1.0)

    def _end(self, beta: float, places: NDArray[np.intp]) -> float:
        """Return the last exponent of such a law; ``places`` of the grid lead away from the best exponent."""
        from scipy.optimize import brentq

        likely = np.flatnonzero(self._misfit.on_grid[places] <= self._limit)
        beyond = int(likely[-1]) + 1 if len(likely) else 0
        inner = float(_GRID[places[beyond - 1]]) if beyond else beta
        if beyond == len(places):
            return inner
        return float(
            brentq(lambda one: self._misfit.at(one) - self._limit, inner, float(_GRID[places[beyond]]), xtol=1e-7)
        )

    def _crossings(self, level: float, gamma: float) -> tuple[float, float]:
        """Return the sizes at which the smallest and the largest alpha m^beta + ``gamma`` x gamma falls to a level."""
        from scipy.optimize import brentq

        def above(log_size: float, end: int) -> float:
            return self._range(np.exp(log_size * self.betas), gamma)[end] - level

        found = []
        for end in (0, 1):
            nearest = -50.0
            if above(_FARTHEST, end) > 0:
                found.append(math.inf)
                continue
            if above(nearest, end) > 0:
                nearest = float(brentq(above, nearest, _FARTHEST, args=(end,), xtol=1e-9))
            found.append(self._misfit.largest_size * math.exp(nearest))
        return found[0], found[1]

    def _range(self, per_alpha: Floats, per_gamma: float) -> tuple[float, float]:
        """Return the extremes of ``per_alpha`` x alpha + ``per_gamma`` x gamma, with a factor [n] for each exponent."""
        one, alpha, gamma, slack = self._misfit.one, self._alpha, self._gamma, self._slack
        # Where a line of equal value touches the ellipse.
        to_alpha = (one * per_alpha - self._x1 * per_gamma) / self._determinant
        to_gamma = (self._xx * per_gamma - self._x1 * per_alpha) / self._determinant
        square = per_alpha * to_alpha + per_gamma * to_gamma
        length = np.sqrt(slack / np.maximum(square, 1e-300))
        candidates = [(alpha + sign * length * to_alpha, gamma + sign * length * to_gamma) for sign in (-1, 1)]
        # Where the ellipse meets the axes, as far as it does.
        none = np.zeros_like(alpha)
        with np.errstate(invalid="ignore"):
            half = np.sqrt(self._xx * slack - self._determinant * gamma**2)
            candidates += [(alpha + (self._x1 * gamma + sign * half) / self._xx, none) for sign in (-1, 1)]
            half = np.sqrt(one * slack - self._determinant * alpha**2)
            candidates += [(none, gamma + (self._x1 * alpha + sign * half) / one) for sign in (-1, 1)]
        # The origin, if it is inside.
        origin = self._xx * alpha**2 + 2 * self._x1 * alpha * gamma + one * gamma**2 <= slack
        candidates.append((np.where(origin, 0.0, np.nan), none))
        alphas, gammas = (np.stack(values) for values in zip(*candidates, strict=True))
        possible = self._exist & (alphas >= 0) & (gammas >= 0)
        values = (alphas * per_alpha + gammas * per_gamma)[possible]
        return float(values.min()), float(values.max())
