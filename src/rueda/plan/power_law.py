"""Fit the test error as a power law of the amount of data, with intervals.

Hestness et al. 2017 (1712.00409): once a model is better than chance, its test error after training on m examples is

    error(m) = alpha m^beta + gamma,    alpha > 0,  beta < 0,  gamma >= 0

The fit is generalised least squares: the mean errors are weighted by their covariance
(:mod:`rueda.plan.curve_noise`). For a given beta the best alpha and gamma have a closed form, so only beta is searched.

Intervals are profile-likelihood intervals (:mod:`rueda.plan.likely_laws`). The covariance is known with f degrees of
freedom, and the misfit chi-squared of n points adds n - 3, so that its scale is

    s^2 = (f + chi-squared) / (f + n - 3),    at least 1

and the quantile is Student's with f + n - 3 degrees of freedom. Points that scatter about the curve significantly more
than the covariance says (at 5 %), or that have no repeats, have the scale chi-squared / (n - 3) of their scatter alone.

:mod:`rueda.plan.data_needed` decides where such a law can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rueda.errors import RunError
from rueda.plan.likely_laws import Floats, LikelyLaws, Misfit
from rueda.records.forecast import FEWEST_SIZES, Estimate
from rueda.records.student import quantile

_SIGNIFICANT = 0.05
_FEWEST_FREEDOM = 4
"""degrees of freedom with which the noise of counting is trusted where there are no repeats"""


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law, with the laws that its intervals contain."""

    alpha: float
    beta: float
    gamma: float
    sizes: Floats = field(repr=False)
    misfit: float
    """p-value of the chi-squared test for lack of fit; 1 if there are no degrees of freedom"""
    confidence: float
    likely: LikelyLaws = field(repr=False)

    def error(self, size: float) -> Estimate:
        """Predict the mean error of trainings on ``size`` examples."""
        return _estimate(self.alpha * size**self.beta + self.gamma, self.likely.errors(size))

    def examples(self, target: float) -> Estimate:
        """Return the examples that reach a target error; infinite (``high`` is None) if gamma is above it."""
        return _estimate(examples_for(self.alpha, self.beta, self.gamma, target), self.likely.examples(target))

    def irreducible_from(self) -> Estimate:
        """Return the examples from which gamma is more than half of the error; infinite if gamma is 0."""
        return _estimate(examples_for(self.alpha, self.beta, 0.0, self.gamma), self.likely.halves())

    def constants(self) -> tuple[Estimate, Estimate, Estimate]:
        """Return alpha, beta and gamma with their intervals."""
        betas = float(self.likely.betas[0]), float(self.likely.betas[-1])
        ranges = self.likely.alphas(), betas, self.likely.gammas()
        alpha, beta, gamma = map(_estimate, (self.alpha, self.beta, self.gamma), ranges)
        return alpha, beta, gamma


def _estimate(value: float, ends: tuple[float, float]) -> Estimate:
    low, high = min(ends[0], value), max(ends[1], value)  # they differ by rounding where a constant is at its limit
    return Estimate(value=value, low=low, high=high if math.isfinite(high) else None)


def examples_for(alpha: float, beta: float, gamma: float, target: float) -> float:
    """Return the number of examples at which a law has a target error; infinite if gamma is above it.

    >>> round(examples_for(2.0, -0.4, 0.05, 0.1)), examples_for(2.0, -0.4, 0.05, 0.04)
    (10119, inf)
    """
    if target <= gamma:
        return math.inf
    try:
        return math.exp(math.log((target - gamma) / alpha) / beta) if alpha > 0 else 0.0
    except OverflowError:
        return math.inf


def fit_power_law(
    sizes: Sequence[float],
    errors: Sequence[float],
    noise: Floats,
    *,
    freedom: float = math.inf,
    confidence: float = 0.95,
) -> PowerLaw:
    """Fit alpha, beta and gamma to mean errors.

    Args:
        sizes: sizes of the training sets, at least four different ones.
        errors: the mean error at each size.
        noise: the covariance of these means, [sizes, sizes].
        freedom: the degrees of freedom with which ``noise`` was estimated; infinite if it is known, 0 if there are no
            repeats.
        confidence: confidence level of the intervals.

    >>> sizes = [100, 200, 400, 800, 1600, 3200]
    >>> law = fit_power_law(sizes, [2 * size**-0.4 + 0.05 for size in sizes], 0.002**2 * np.eye(6))
    >>> round(law.alpha, 3), round(law.beta, 3), round(law.gamma, 3), round(law.examples(0.1).value)
    (2.0, -0.4, 0.05, 10119)
    """
    from scipy.special import chdtrc

    m, e, noise = (np.asarray(values, dtype=float) for values in (sizes, errors, noise))
    if len(np.unique(m)) < FEWEST_SIZES:
        raise RunError(
            f"a power law with a floor needs {FEWEST_SIZES} sizes or more, got {len(np.unique(m))}; add some"
        )
    try:
        root = np.asarray(np.linalg.cholesky(noise), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise RunError("noise: expected a symmetric positive definite matrix, got another; correct it") from None
    misfit, spare = Misfit(m, e, root), len(m) - 3
    beta = misfit.lowest()
    (alpha,), (gamma,), (smallest,) = misfit.best(np.array([beta]))
    lack_of_fit = float(chdtrc(spare, smallest))
    freedom = min(freedom, 1e9)
    known = freedom if lack_of_fit >= _SIGNIFICANT else 0.0
    scale = max(1.0, (known + smallest) / (known + spare))
    # F with 1 and n degrees of freedom is the square of Student's t with n.
    student = quantile(max(freedom, _FEWEST_FREEDOM) + spare, (1 + confidence) / 2)
    return PowerLaw(
        alpha=float(alpha) * misfit.largest_size**-beta, beta=beta, gamma=float(gamma), sizes=m,
        misfit=lack_of_fit, confidence=confidence,
        likely=LikelyLaws(misfit, beta, float(smallest + student**2 * scale)),
    )  # fmt: skip
