"""Fit the test error as a power law of the amount of data, with intervals.

Hestness et al. 2017 (1712.00409): once a model is better than chance, its test error after training on m examples is

    error(m) = alpha m^beta + gamma,    alpha > 0,  beta < 0,  gamma >= 0

The fit is generalised least squares: the mean errors are weighted by their covariance, which comes from the spread over
the repeats and from the finite test set (:func:`covariance`). For a given beta the best alpha and gamma have a closed
form, so only beta is searched. Intervals come from a parametric bootstrap: errors are drawn around the fitted curve
with that covariance (a larger one if the points scatter more) and fitted again.

:mod:`rueda.plan.data_needed` decides where such a law can be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rueda.errors import RunError
from rueda.records.forecast import FEWEST_SIZES, CurvePoint, Estimate

_BETAS = -np.geomspace(0.01, 3.0, 400)

_SHARED = 0.5
_KEPT = 0.9
_PRIOR = 4

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law and its bootstrap samples."""

    alpha: float
    beta: float
    gamma: float
    sizes: Floats = field(repr=False)
    misfit: float
    """p-value of the chi-squared test for lack of fit; 1 if there are no degrees of freedom"""
    confidence: float
    samples: Floats = field(repr=False)
    """alpha, beta, gamma of each bootstrap sample, [samples, 3]"""
    num_curves: int = 1
    """curves around which the samples are drawn, in turn"""

    def error(self, size: float) -> Estimate:
        """Predict the mean error of trainings on ``size`` examples."""
        alpha, beta, gamma = self.samples.T
        return self._estimate(self.alpha * size**self.beta + self.gamma, alpha * size**beta + gamma)

    def examples(self, target: float) -> Estimate:
        """Return the examples that reach a target error; infinite (``high`` is None) if gamma is above it."""
        best = np.array([[self.alpha, self.beta, self.gamma]])
        return self._estimate(float(_inverse(best, target)[0]), _inverse(self.samples, target))

    def irreducible_from(self) -> Estimate:
        """Return the examples from which gamma is more than half of the error; infinite if gamma is 0."""
        samples = np.concatenate([[[self.alpha, self.beta, self.gamma]], self.samples])
        found = _inverse(samples * [1, 1, 0], samples[:, 2])
        return self._estimate(float(found[0]), found[1:])

    def constants(self) -> tuple[Estimate, Estimate, Estimate]:
        """Return alpha, beta and gamma with their intervals."""
        alpha, beta, gamma = self.samples.T
        # A gamma found by chance makes beta too steep, and never too flat: beta may be where either curve has it.
        each = [self._estimate(self.beta, beta[number :: self.num_curves]) for number in range(self.num_curves)]
        exponent = replace(each[0], low=min(one.low for one in each), high=max(one.high or 0.0 for one in each))
        return self._estimate(self.alpha, alpha), exponent, self._estimate(self.gamma, gamma)

    def _estimate(self, value: float, samples: Floats) -> Estimate:
        tail = (1 - self.confidence) / 2
        # The quantile is not interpolated: some samples are infinite, rightly.
        low, high = np.quantile(samples, [tail, 1 - tail], method="nearest")
        return Estimate(value=float(value), low=float(low), high=float(high) if np.isfinite(high) else None)


def fit_power_law(
    sizes: Sequence[float],
    errors: Sequence[float],
    noise: Floats,
    *,
    confidence: float = 0.95,
    num_samples: int = 1000,
    seed: int = 0,
) -> PowerLaw:
    """Fit alpha, beta and gamma to mean errors.

    Args:
        sizes: sizes of the training sets, at least four different ones.
        errors: the mean error at each size.
        noise: the covariance of these means, [sizes, sizes].
        confidence: confidence level of the intervals.
        num_samples: number of bootstrap samples.
        seed: seed of the bootstrap.

    >>> sizes = [100, 200, 400, 800, 1600, 3200]
    >>> law = fit_power_law(sizes, [2 * size**-0.4 + 0.05 for size in sizes], 0.002**2 * np.eye(6))
    >>> round(law.alpha, 3), round(law.beta, 3), round(law.gamma, 3), round(law.examples(0.1).value)
    (2.0, -0.4, 0.05, 10119)
    """
    from scipy.optimize import minimize_scalar
    from scipy.stats import chi2

    m, e, noise = (np.asarray(values, dtype=float) for values in (sizes, errors, noise))
    if len(np.unique(m)) < FEWEST_SIZES:
        raise RunError(
            f"a power law with a floor needs {FEWEST_SIZES} sizes or more, got {len(np.unique(m))}; add some"
        )
    try:
        root = np.linalg.cholesky(noise)
    except np.linalg.LinAlgError:
        raise RunError("noise: expected a symmetric positive definite matrix, got another; correct it") from None
    scale, weights = m.max(), np.asarray(np.linalg.inv(noise), dtype=np.float64)
    _, first, _, _ = _fit_all(m / scale, e[None], weights, _BETAS)
    # The grid is fine enough for the bootstrap; the best fit is refined between its points.
    place = int(np.argmin(np.abs(_BETAS - first[0])))
    low, high = _BETAS[min(place + 1, len(_BETAS) - 1)], _BETAS[max(place - 1, 0)]
    found = minimize_scalar(
        lambda beta: float(_fit_all(m / scale, e[None], weights, np.array([beta]))[3][0]),
        bounds=(low, high), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    alpha, beta, gamma, misfit = _fit_all(m / scale, e[None], weights, np.array([float(found.x), first[0]]))
    spare = len(m) - 3
    p_value = float(chi2.sf(misfit[0], spare)) if spare > 0 else 1.0
    wider = max(1.0, np.sqrt(misfit[0] / spare)) if spare > 0 else 1.0
    # If a curve without gamma fits nearly as well, half of the samples are drawn around that curve: a gamma found by
    # chance would make beta look too steep.
    curves = [alpha[0] * (m / scale) ** beta[0] + gamma[0]]
    bare_alpha, bare_beta, _, bare_misfit = _fit_all(m / scale, e[None], weights, _BETAS, floor=False)
    if bare_misfit[0] - misfit[0] < chi2.isf(0.02, 1) * wider**2:
        curves.append(bare_alpha[0] * (m / scale) ** bare_beta[0])
    noises = wider * np.random.default_rng(seed).standard_normal((num_samples, len(m))) @ root.T
    drawn = noises + np.resize(np.stack(curves), noises.shape)
    alphas, betas, gammas, _ = _fit_all(m / scale, drawn, weights, _BETAS)
    samples = np.stack([alphas * scale**-betas, betas, gammas], 1)
    return PowerLaw(
        alpha=float(alpha[0] * scale ** -beta[0]), beta=float(beta[0]), gamma=float(gamma[0]), sizes=m,
        misfit=p_value, confidence=confidence, samples=samples, num_curves=len(curves),
    )  # fmt: skip


def _fit_all(
    m: Floats, errors: Floats, weights: Floats, betas: Floats, *, floor: bool = True
) -> tuple[Floats, Floats, Floats, Floats]:  # fmt: skip
    """Fit each row of errors, [n, sizes], over a grid of betas; return alpha, beta, gamma and chi-squared, [n] each."""
    powers = m[None] ** betas[:, None]  # [betas, sizes]
    weighed = powers @ weights
    xx, x1, one = (weighed * powers).sum(1)[:, None], weighed.sum(1)[:, None], weights.sum()  # [betas, 1]
    xy, y1 = weighed @ errors.T, errors @ weights.sum(1)  # [betas, n], [n]
    determinant = np.maximum(xx * one - x1**2, 1e-300)
    alpha, gamma = (xy * one - x1 * y1) / determinant, (xx * y1 - x1 * xy) / determinant
    gamma = gamma if floor else np.full_like(gamma, -1.0)
    # A coefficient that would be negative is set to 0, and the other one is fitted alone.
    alpha, gamma = np.where(gamma < 0, np.maximum(xy / xx, 0), alpha), np.maximum(gamma, 0)
    gamma, alpha = np.where(alpha < 0, np.maximum(y1 / one, 0), gamma), np.maximum(alpha, 0)
    yy = ((errors @ weights) * errors).sum(1)
    misfit = yy - 2 * (alpha * xy + gamma * y1) + alpha**2 * xx + 2 * alpha * gamma * x1 + gamma**2 * one
    best = misfit.argmin(0)
    each = np.arange(errors.shape[0])
    return alpha[best, each], betas[best], gamma[best, each], np.maximum(misfit[best, each], 0)


def _inverse(constants: Floats, target: float | Floats) -> Floats:
    alpha, beta, gamma = constants.T
    above = np.maximum(target - gamma, 0)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.asarray(np.where(above > 0, np.exp((np.log(above) - np.log(alpha)) / beta), np.inf))


def covariance(points: Sequence[CurvePoint], test_examples: int, *, is_fraction: bool = True) -> Floats:
    """Estimate the covariance of the mean errors of some points, [points, points].

    With v = p (1 - p) / n for an error p counted on n test examples, it is the sum of two parts:

    - *Among repeats*, independent: variance / repeats. Three repeats say little about their own variance, so it is
      averaged with a pooled one (a deviation proportional to the error) that counts as four further repeats. It is at
      least v / 2, since examples near the decision boundary fall on either side by chance.
    - *The test set*, which all points share: v / 2, with a correlation of 0.9 between a size and twice that size, 0.81
      for four times: a test set that is hard at one size is hard at the next.

    The halves and the 0.9 were measured: for `glyphs-cnn` from 188 to 12,000 examples, 0.25 to 0.55 of v is common to
    the repeats, with a correlation of 0.92 over 4 times the data and 0.58 over 64 times.

    The mean p of losses or other values that are not fractions has v = p^2 / n: their standard deviation over the
    examples is assumed to equal their mean, which is roughly true of a squared error or a cross-entropy.

    >>> one = CurvePoint(examples=100, passes=1.0, updates=1, errors=(0.2,))
    >>> float(covariance([one], test_examples=400)[0, 0] ** 0.5)  # sqrt(0.2 * 0.8 / 400)
    0.02
    """
    errors = np.array([point.error or 0.0 for point in points])
    spreads = np.array([point.spread or 0.0 for point in points])
    freedoms = np.array([max(0, len(point.errors) - 1) for point in points])
    # An error of 0 on n examples is known only to 1 / n.
    counted = np.maximum(errors * (1 - errors) / test_examples, test_examples**-2.0)
    if not is_fraction:
        counted = np.maximum(errors**2, 1e-300) / test_examples
    common = (freedoms * spreads**2).sum() / max((freedoms * errors**2).sum(), 1e-300) * errors**2
    among = (_PRIOR * common + freedoms * spreads**2) / (_PRIOR + freedoms)
    among = np.maximum(among, (1 - _SHARED) * counted) / (freedoms + 1)
    doublings = np.log2([point.examples for point in points])
    together = _KEPT ** np.abs(doublings[:, None] - doublings[None])
    return np.asarray(np.diag(among) + _SHARED * together * np.sqrt(np.outer(counted, counted)))
