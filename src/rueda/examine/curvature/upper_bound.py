"""An upper bound of the largest eigenvalue, from the random start vector of a Lanczos search.

Van Dorsselaer, Hochstenbach and van der Vorst (2000), *Computing probabilistic bounds for extreme eigenvalues of
symmetric matrices with the Lanczos method*. A Ritz value theta is at most the largest eigenvalue mu; how far mu can be
above it follows from what the basis Q would have seen. With HQ = QT + b q e_m' (q the next direction, b its length)
and a unit eigenvector u of mu,

    Q'u = (q'u) b (mu - T)^-1 e_m        and        |Q'u|² + (q'u)² <= 1

so the start vector s, which is in the basis, has at most a component

    (s'u)² <= (s'Q b (mu - T)^-1 e_m)² / (1 + b² |(mu - T)^-1 e_m|²)

along u: the larger mu, the smaller. But s is random. A unit vector that is uniform on the sphere in n dimensions has a
component below delta sqrt(pi / 2n) with a probability of at most delta. So with a probability of 1 - delta, mu is at
most where the right-hand side falls to that.

The bound is for exact products; rounding adds components of u to the basis, which is in the search's favour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RISK = 0.01
"""the probability that the largest eigenvalue lies above the bound"""
HALVINGS = 12
"""steps of the bisection: the distance is up to a four-thousandth too large"""


@dataclass(frozen=True)
class _Stage:
    """A basis that was reduced: what its eigenvectors had of the start vector."""

    thetas: Floats
    ends: Floats
    """b times the last components of T's eigenvectors"""
    dropped: Floats
    """the start vector's components along the Ritz vectors, zero along those that were kept"""
    pivot: Floats | None
    """the components along the Ritz vectors of the direction that continued after the restart before this one"""


class UpperBound:
    """The bound, for a search that calls it with each step's Ritz values and tells it of restarts.

    Args:
        size: the dimension n.
        random_length: the length of the random part of the unit start vector. The fixed part does not matter: a
            component is below a limit most often if the random one is alone.

    >>> bound = UpperBound(100)
    >>> thetas, coordinates = np.linalg.eigh(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> round(bound.distance(thetas[::-1], coordinates[:, ::-1], 1e-3), 4)  # above the Ritz value 3
    0.3409
    """

    def __init__(self, size: int, random_length: float = 1.0) -> None:
        self._smallest = RISK * math.sqrt(math.pi / (2 * size)) * random_length
        self._start = np.ones(1)  # the start vector is the first of the basis
        self._stages: list[_Stage] = []
        self._pivot = 0

    def excludes(self, distance: float, thetas: Floats, coordinates: Floats, new: float) -> bool:
        """Return whether no eigenvalue is further above the largest Ritz value; the arguments as of ``distance``."""
        return not self._possible(self._stage(thetas, coordinates, new), float(thetas[0]) + distance)

    def distance(self, thetas: Floats, coordinates: Floats, new: float) -> float:
        """Return how far above the largest Ritz value the largest eigenvalue can be.

        Args:
            thetas: [m], the Ritz values, the largest first.
            coordinates: [m, m], their vectors in the basis, as columns.
            new: the length b of the next direction.
        """
        stage = self._stage(thetas, coordinates, new)
        top = float(thetas[0])
        scale = max(abs(top), float(np.abs(thetas).max()))
        far = max(float(abs(stage.ends[0])), 1e-14 * scale)
        near = 0.0
        while self._possible(stage, top + far):
            near, far = far, 2 * far
            if far > 1e12 * scale:  # the basis says nothing yet
                return math.inf
        if near == 0.0:
            return far  # the residual, and the bound is below it
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            near, far = (middle, far) if self._possible(stage, top + middle) else (near, middle)
        return far

    def restart(self, thetas: Floats, coordinates: Floats, new: float, kept: int) -> None:
        """Note that the basis is reduced to its first ``kept`` Ritz vectors and extended by the next direction."""
        stage = self._stage(thetas, coordinates, new)
        self._start = stage.dropped[:kept].copy()
        stage.dropped[:kept] = 0.0
        self._stages.append(stage)
        self._pivot = kept

    def _stage(self, thetas: Floats, coordinates: Floats, new: float) -> _Stage:
        pivot = coordinates[self._pivot].copy() if self._stages else None
        return _Stage(thetas.copy(), new * coordinates[-1], self._start @ coordinates[: len(self._start)], pivot)

    def _possible(self, stage: _Stage, eigenvalue: float) -> bool:
        """Return whether an eigenvector of this value can have as large a component of the start vector as it must."""
        seen = stage.ends / (eigenvalue - stage.thetas)  # Q'u / q'u, along the Ritz vectors
        component = 0.0
        for one in (*self._stages, stage):
            ratios = one.ends / (eigenvalue - one.thetas)
            before = 0.0 if one.pivot is None else component * float(one.pivot @ ratios)
            component = before + float(one.dropped @ ratios)
        return bool(component**2 > self._smallest**2 * (1 + seen @ seen))
