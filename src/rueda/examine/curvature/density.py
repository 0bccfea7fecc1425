"""The spectral density of the Hessian: how its n eigenvalues are spread, by stochastic Lanczos quadrature.

Ubaru, Chen and Saad 2017; for networks Ghorbani, Krishnan and Xiao 2019 (1901.10159). For a random unit vector v,

    phi(x) = 1/n sum_i delta(x - lambda_i)    is the mean over v of    sum_i (v'u_i)² delta(x - lambda_i)

and m steps of Lanczos from v give the m-point Gauss quadrature of the latter: nodes theta_k (the Ritz values), weights
the squared first components of T's eigenvectors. It reproduces the moments v'H^j v up to j = 2m - 1 exactly. The mean
over several v estimates phi; their differences give the standard error, at every point and of every moment.

For a picture each node is drawn as a Gaussian g of a small width. The interval of the curve follows from what is known
of random unit vectors: with the eigenvectors in general position, a probe's value at x has the variance

    2 / (n + 2) (1/n sum_i g(x - lambda_i)² - phi(x)²),    and g² is a Gaussian, narrower by sqrt(2), times a factor

so it is estimated from the nodes as phi is. Where one eigenvalue stands alone the value is a multiple of chi-squared
with as many degrees of freedom as there are probes, which is so skewed that Student's interval for 90 % holds the
truth in 79 % of the cases; where many eigenvalues lie together there are many degrees of freedom. The interval at each
point is that of chi-squared with the degrees that give its mean and variance, and holds the truth in 88 to 91 %.
Moments, which are sums over the whole spectrum, have Student's intervals; those of a spectrum with one dominant
eigenvalue are as skewed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.curvature.lanczos import ROUNDING, orthogonalised, vector_norm
from rueda.examine.curvature.product import Product
from rueda.examine.curvature.trace import mean_and_error, random_signs
from rueda.records.student import CONFIDENCE

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Density:
    """A spectral density: for each probe the nodes and weights of a quadrature."""

    nodes: tuple[Floats, ...]
    weights: tuple[Floats, ...]
    """the weights of each probe's nodes, which sum to 1"""
    size: int
    """the number n of eigenvalues"""

    def moment(self, power: int) -> tuple[float, float]:
        """Estimate the mean of lambda^power over all eigenvalues, and its standard error.

        Power 1 times n is the trace, power 2 times n the squared Frobenius norm.
        """
        return mean_and_error([float(w @ x**power) for x, w in zip(self.nodes, self.weights, strict=True)])

    def share_above(self, value: float) -> tuple[float, float]:
        """Estimate the share of eigenvalues above a value, and its standard error."""
        return mean_and_error([float(w[x > value].sum()) for x, w in zip(self.nodes, self.weights, strict=True)])

    def curve(self, num_points: int = 400, width: float | None = None) -> Curve:
        """Return the density as a curve.

        Args:
            num_points: points of the grid, which reaches five widths beyond the outermost nodes.
            width: standard deviation of the Gaussians; by default a hundredth of the range of the nodes.
        """
        low, high = min(x.min() for x in self.nodes), max(x.max() for x in self.nodes)
        width = width or max((high - low) / 100, 1e-6 * max(abs(low), abs(high))) or 1e-6
        grid = np.linspace(low - 5 * width, high + 5 * width, num_points)
        mean, squares = self._smooth(grid, width), self._smooth(grid, width / math.sqrt(2))
        squares = squares / (2 * width * math.sqrt(math.pi))  # the mean over eigenvalues of g²
        variance = 2 / (self.size + 2) * np.maximum(squares - mean**2, 0.0) / len(self.nodes)
        return Curve(grid, mean, np.sqrt(variance), *_chi_squared_interval(mean, variance), float(width))

    def _smooth(self, grid: Floats, width: float) -> Floats:
        curves = [_smooth(grid, x, w, width) for x, w in zip(self.nodes, self.weights, strict=True)]
        return np.asarray(np.mean(curves, axis=0))


class Curve(NamedTuple):
    """A spectral density at the points of a grid."""

    positions: Floats
    values: Floats
    errors: Floats
    """standard errors"""
    lows: Floats
    highs: Floats
    """the ends of the 90 % interval at each point"""
    width: float
    """of the Gaussians"""


def spectral_density(
    product: Product,
    like: Tensor,
    *,
    num_probes: int = 6,
    num_steps: int = 40,
    seed: int = 0,
    step: Callable[[int], None] | None = None,
) -> Density:
    """Estimate the spectral density.

    Args:
        product: from a vector [n] to H times it.
        like: a tensor of [n] entries, for type and device.
        num_probes: the number of random vectors; two or more give an error estimate.
        num_steps: nodes per probe; each needs one product.
        seed: the seed of the probes.
        step: called after each product with the number of products so far.

    >>> diagonal = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    >>> found = spectral_density(lambda v: diagonal * v, diagonal, num_probes=2, num_steps=4)
    >>> found.nodes[0].round(9).tolist(), found.weights[0].round(9).tolist(), round(found.moment(2)[0], 9)
    ([1.0, 2.0, 3.0, 6.0], [0.25, 0.25, 0.25, 0.25], 12.5)
    """
    if num_probes < 1 or num_steps < 1:
        raise ExamineError(
            "the density", expected="at least 1 probe and 1 step", got=(num_probes, num_steps), do="add some"
        )
    draws = torch.Generator().manual_seed(seed)
    nodes, weights, done = [], [], 0
    for _ in range(num_probes):
        length = min(num_steps, like.numel())
        basis = torch.empty(length, like.numel(), dtype=like.dtype, device=like.device)
        probe = random_signs(like, draws)
        basis[0] = probe / vector_norm(probe)
        matrix = np.zeros((length, length))
        for k in range(length):
            image = product(basis[k])
            done += 1
            coefficients, rest = orthogonalised(image, basis[: k + 1])
            matrix[: k + 1, k] = matrix[k, : k + 1] = coefficients
            if step is not None:
                step(done)
            new = vector_norm(rest)
            if new <= ROUNDING * torch.finfo(like.dtype).eps * max(vector_norm(image), np.abs(matrix).max()):
                matrix = matrix[: k + 1, : k + 1]  # the Krylov space is invariant: the quadrature is exact
                break
            if k + 1 < length:
                basis[k + 1] = rest / new
        found, coordinates = np.linalg.eigh(matrix)
        nodes.append(found)
        weights.append(coordinates[0] ** 2)
    return Density(nodes=tuple(nodes), weights=tuple(weights), size=like.numel())


def _smooth(grid: Floats, nodes: Floats, weights: Floats, width: float) -> Floats:
    distance = (grid[:, None] - nodes) / width
    return np.asarray(np.exp(-0.5 * distance**2) @ weights / (width * np.sqrt(2 * np.pi)))


def _chi_squared_interval(mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the 90 % interval of estimates that are multiples of chi-squared with these means, variances.

    With c = 2 mean / variance, c times the estimate is chi-squared with c times the truth as its degrees of freedom.
    """
    from scipy.special import chdtriv

    known = (variance > 1e-9 * mean**2) & (mean > 1e-300)
    factor = 2 * mean[known] / variance[known]
    lows, highs = mean.copy(), mean.copy()
    tail = (1 - CONFIDENCE) / 2
    with np.errstate(all="ignore"):
        ends = np.sort([chdtriv(chance, factor * mean[known]) / factor for chance in (tail, 1 - tail)], axis=0)
    # Where the estimate is far below one eigenvalue's, the search for the degrees of freedom may fail.
    lows[known], highs[known] = np.nan_to_num(ends[0]), np.where(np.isfinite(ends[1]), ends[1], mean[known])
    return np.minimum(lows, mean), np.maximum(highs, mean)
