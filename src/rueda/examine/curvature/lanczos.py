"""The largest eigenvalues of a symmetric matrix that is given by its products, each with a bound on its error.

Lanczos (1950): the space spanned by q, Hq, H²q, ... holds excellent approximations of the outermost eigenvectors after
few products. In an orthonormal basis Q of it, the eigenvalues of the small matrix T = Q'HQ (the *Ritz values*) are the
best that the space can give, and some eigenvalue of H lies within the residual of each:

    H y = theta y + r    =>    some eigenvalue of H lies within |r| of theta

|r| comes for free with each step (the last component of T's eigenvector times the norm of the next direction). But
*some* eigenvalue may be the second, if the start vector has little of the first. So the first value has a second bound
(:mod:`rueda.examine.curvature.upper_bound`): above theta + error there is no eigenvalue, with a probability of 99 %
over the random start vector. The error of the first value is the larger of both, that of the others is the residual,
and all have converged when each error is at most tolerance x |theta|; otherwise the result says that they have not.

Both bounds are needed. Measured on spectra whose first two values lie 0.1 to 5 % apart, at a tolerance of 0.1 %: the
bound by Kato and Temple, |r|² / gap with the gap between Ritz values, ends after 3 to 24 products and holds the truth
in 0 to 100 % of the cases, since two eigenvalues that are not resolved yet look like one in their middle; the residual
alone ends after 3 to 28 products and holds it in 57 to 100 %; this rule ends after 6 to 39 and holds it in 98 to 100 %.
Power iteration needs several times as many products, and its usual stopping rule ("the value hardly changes") bounds no
error.

Two things that the textbook's recurrence loses in floating point are kept: every new direction is orthogonalised
against the whole basis, twice (Parlett: twice is enough), and T is formed from those very coefficients. When the basis
is full, it is reduced to the best Ritz vectors and extended from there (*thick restart*, Wu and Simon 2000), so that
memory is bounded.

What the method cannot detect: an eigenvalue whose eigenvector is orthogonal to the start vector (a random start vector
has a component along every eigenvector); and of a multiple eigenvalue one copy is found before the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.curvature.product import Product
from rueda.examine.curvature.upper_bound import UpperBound

Floats = NDArray[np.float64]
SMALLEST_BASIS = 20
"""the fewest basis vectors beyond the requested eigenvalues"""
ROUNDING = 64
"""a new direction shorter than this many rounding errors of the product counts as zero"""
CONFIRMATION = 10
"""products outside an invariant subspace that must find nothing new before the search ends"""


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """The largest eigenvalues, in descending order, with bounds on their errors."""

    values: Floats
    residuals: Floats
    """|Hy - theta y|: an eigenvalue lies within this distance of each value"""
    errors: Floats
    """the residuals, of the first value the distance to its upper bound if that is larger, and never below rounding"""
    converged: bool
    """every error is at most tolerance x |value|"""
    num_products: int
    opposite: float
    """the smallest Ritz value, a by-product"""
    opposite_residual: float
    basis: Tensor
    """[m, n], orthonormal rows: the basis of the Krylov space"""
    matrix: Floats
    """[m, m]: the matrix in that basis"""


def extreme_eigenvalues(
    product: Product,
    start: Tensor,
    *,
    count: int = 1,
    tolerance: float = 1e-3,
    most_products: int = 300,
    basis_size: int = 80,
    random_length: float = 1.0,
    seed: int = 0,
    step: Callable[[int, float, float], None] | None = None,
) -> Extremes:
    """Find the largest eigenvalues; the smallest are those of the negative matrix.

    Args:
        product: from a vector [n] to H times it.
        start: [n]; its type is that of the basis.
        count: how many eigenvalues.
        tolerance: the relative error at which a value has converged.
        most_products: the number of products after which the search stops unconverged.
        basis_size: the most vectors of [n] in memory; at least ``count`` + 20 are used.
        random_length: the length of the random part of the start vector over that of the whole, for the upper bound.
        seed: the seed of the directions that continue the search after an invariant subspace.
        step: called after each product with (products, outermost value, its residual).

    >>> matrix = torch.diag(torch.arange(1.0, 101.0, dtype=torch.float64))
    >>> found = extreme_eigenvalues(matrix.mv, torch.ones(100, dtype=torch.float64), count=2, tolerance=1e-6)
    >>> found.values.round(6).tolist(), found.converged, bool((found.errors < 1e-4).all())
    ([100.0, 99.0], True, True)
    """
    size = start.numel()
    count = min(count, size)
    if count < 1 or tolerance <= 0 or most_products < 1:
        expected = "a count, a tolerance and a number of products above 0"
        raise ExamineError("eigenvalues", expected=expected, got=(count, tolerance, most_products), do="correct them")
    room = min(size, max(basis_size, count + SMALLEST_BASIS))
    draws = torch.Generator().manual_seed(seed)
    basis = torch.empty(room, size, dtype=start.dtype, device=start.device)
    basis[0] = start / vector_norm(start)
    matrix = np.zeros((room, room))
    bound = UpperBound(size, random_length)
    length, done = 1, 0
    closed: tuple[Floats, int] | None = None
    while True:
        # Extend the basis by the component of H times the last vector that is orthogonal to it.
        image = product(basis[length - 1])
        done += 1
        scale = vector_norm(image)
        coefficients, rest = orthogonalised(image, basis[:length])
        matrix[:length, length - 1] = matrix[length - 1, :length] = coefficients
        new = vector_norm(rest)
        thetas, coordinates = np.linalg.eigh(matrix[:length, :length])
        thetas, coordinates = thetas[::-1], coordinates[:, ::-1]  # the largest first
        if new <= ROUNDING * torch.finfo(start.dtype).eps * max(scale, float(np.abs(thetas).max())):
            new = 0.0  # the space is invariant: its Ritz values are eigenvalues
        residuals = np.abs(new * coordinates[-1])
        found = min(count, length)
        if step is not None:
            step(done, float(thetas[0]), float(residuals[0]))
        floor = ROUNDING * torch.finfo(start.dtype).eps * float(np.abs(thetas).max())
        errors = np.maximum(residuals[:found], floor)
        most = np.maximum(tolerance * np.abs(thetas[:found]), floor)
        bounded = closed is None and new > 0.0  # an invariant space leaves nothing to be found in the start vector
        converged = found == count and bool((errors <= most).all())
        converged = converged and (not bounded or bound.excludes(most[0], thetas, coordinates, new))
        # An invariant subspace may lack copies of a multiple eigenvalue: search outside of it before stopping.
        if converged and (new == 0.0 or closed is not None) and length < size:
            same = closed is not None and np.allclose(thetas[:count], closed[0], rtol=tolerance, atol=floor)
            converged = same and (new == 0.0 or done - closed[1] >= CONFIRMATION)  # type: ignore[index]
            if new == 0.0:
                closed = (thetas[:count].copy(), done)
        if converged or done >= most_products or length == size:
            break
        # Restart: reduce a full basis to its best Ritz vectors and continue with the same new direction.
        if length == room:
            kept = min(length - 1, count + (length - count) // 2)
            basis[:kept] = torch.from_numpy(coordinates[:, :kept].T.copy()).to(basis) @ basis[:length]
            bound.restart(thetas, coordinates, new, kept)
            matrix[:] = 0.0
            matrix[range(kept), range(kept)] = thetas[:kept]
            length = kept
        if new == 0.0:
            rest = _direction_outside(basis[:length], draws)
        basis[length] = rest / vector_norm(rest)
        length += 1
    if bounded:
        errors[0] = max(errors[0], min(bound.distance(thetas, coordinates, new), most[0] if converged else math.inf))
    return Extremes(
        values=thetas[:found],
        residuals=residuals[:found],
        errors=errors,
        converged=converged,
        num_products=done,
        opposite=float(thetas[-1]),
        opposite_residual=float(residuals[-1]),
        basis=basis[:length],
        matrix=matrix[:length, :length],
    )


def _direction_outside(basis: Tensor, draws: torch.Generator) -> Tensor:
    """Draw a random direction and return the part of it that is orthogonal to the basis [k, n], k < n.

    A draw can lie in the span of the basis, for example when the start vector was drawn with the same seed; the part
    outside is then zero or rounding error, and another direction is drawn.
    """
    while True:
        fresh = torch.randn(basis.shape[1], generator=draws, dtype=torch.float64).to(basis)
        rest = orthogonalised(fresh, basis)[1]
        if vector_norm(rest) > math.sqrt(torch.finfo(basis.dtype).eps) * vector_norm(fresh):
            return rest


def orthogonalised(vector: Tensor, basis: Tensor) -> tuple[Floats, Tensor]:
    """Return the coordinates of a vector in an orthonormal basis [k, n], and its component orthogonal to the basis."""
    first = basis @ vector
    rest = vector - first @ basis
    second = basis @ rest
    rest = rest - second @ basis
    return (first.double() + second.double()).cpu().numpy(), rest


def vector_norm(vector: Tensor) -> float:
    """Return the length of a vector, summed in float64."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
