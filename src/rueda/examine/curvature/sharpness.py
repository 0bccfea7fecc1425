"""Sharpness: how far the loss rises near a trained model, by four measures of *near*.

======================  =============================================================  ==============================
kind                    neighbourhood of the parameters x                              value
======================  =============================================================  ==============================
``keskar``              box, |y_i| <= eps (|x_i| + 1)                                  100 (max f(x+y) - f) / (1 + f)
``keskar-subspace``     y = A z, A random n x 100, |z_i| <= eps (|(A⁺x)_i| + 1)         the same
``sam``                 ball, |y| <= rho                                               max f(x+y) - f
``adaptive``            ball of relative size, |y / (|x| + 0.01)| <= rho               max f(x+y) - f
======================  =============================================================  ==============================

The first two are Keskar et al. 2016 (1609.04836): 10 iterations of L-BFGS-B from y = 0, eps 1e-3 and 5e-4. A⁺ is the
pseudo-inverse; the entries of A are standard normal. The third is what SAM descends (Foret et al. 2020, 2010.01412),
the fourth ASAM (Kwon et al. 2021, 2102.11600): it does not change when a network is rescaled without changing what it
computes, which the others do (Dinh et al. 2017, 1703.04933).

The ball measures take the step to the boundary along the gradient, y = rho g / |g|, as SAM does (``first_order``), and
repeat it with the gradient found there. For a convex f every such step rises; the best point is kept in any case.

Every maximum is one that was *found*: the true one is at least as high.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.curvature.ascent import Ascent
from rueda.examine.curvature.hessian import batch_norm_words
from rueda.examine.objective.objective import Objective
from rueda.records.curvature import SharpnessFound, SharpnessMeasure
from rueda.world import World

KINDS = ("keskar", "keskar-subspace", "sam", "adaptive")
ADAPTIVE_OFFSET = 0.01
"""eta of ASAM: parameters at zero may move, too"""
LARGEST_SUBSPACE_BYTES = 2 << 30

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]


def sharpness(
    objective: Objective,
    *,
    kinds: Sequence[str] = KINDS,
    epsilons: Sequence[float] = (1e-3, 5e-4),
    rho: float = 0.05,
    adaptive_rho: float = 0.5,
    iterations: int = 10,
    num_columns: int = 100,
    seed: int = 0,
    world: World | None = None,
    progress: Progress | None = None,
) -> SharpnessFound:
    """Measure how far the loss rises near a model.

    Args:
        objective: the mean loss of the model on some examples.
        kinds: which measures; see the table above.
        epsilons: sizes of Keskar's box; all radii are those of the papers by default.
        rho: radius of the ball.
        adaptive_rho: radius of the relative ball.
        iterations: of L-BFGS-B, and steps in a ball.
        num_columns: dimensions of the random subspace.
        seed: of the subspace, and of a first direction where the gradient is zero.
        world: the workers that share the examples; the numbers do not depend on how many there are.
        progress: called with (what, measures done, measures in all).

    >>> from torch import nn
    >>> model = nn.Linear(2, 1, bias=False).double()
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -3.0]]))
    >>> x = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    >>> half_square = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> found = sharpness(Objective(model, half_square, x, torch.zeros(2, 1)), kinds=["keskar"], epsilons=[1e-3])
    >>> highest = 1.0 * 1.002**2 + 4.0 * 3.004**2  # f = w1² + 4 w2², from 37, highest at a corner of the box
    >>> round(found.measures[0].highest - highest, 9), round(found.measures[0].value, 6)
    (0.0, 0.263337)
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise ExamineError(
            "sharpness", expected=f"kinds among {', '.join(KINDS)}", got=unknown or "none", do="correct them"
        )
    radii = [*epsilons, rho, adaptive_rho]
    if not epsilons or not all(math.isfinite(radius) and radius > 0 for radius in radii):
        raise ExamineError("sharpness", expected="radii above 0", got=radii, do="correct them")
    if iterations < 1 or num_columns < 1:
        raise ExamineError(
            "sharpness",
            expected="iterations and columns of 1 or more",
            got=(iterations, num_columns),
            do="correct them",
        )
    began = time.perf_counter()
    found: list[SharpnessMeasure] = []
    with Ascent(objective, world=world) as ascent:
        work = [
            (kind, radius)
            for kind in kinds
            for radius in {"sam": [rho], "adaptive": [adaptive_rho]}.get(kind, epsilons)
        ]
        for index, (kind, radius) in enumerate(work):
            if progress is not None:
                progress(f"{kind} {radius:g}", index, len(work))
            if kind == "keskar":
                found.append(_box(ascent, radius, iterations))
            elif kind == "keskar-subspace":
                found.append(_subspace(ascent, radius, iterations, num_columns, seed))
            else:
                found.append(_ball(ascent, kind=kind, rho=radius, steps=iterations, seed=seed))
        if progress is not None:
            progress("done", len(work), len(work))
        return SharpnessFound(
            loss=ascent.loss, examples=objective.num_examples, parameters=objective.num_parameters,
            measures=tuple(found), batch_norm=batch_norm_words(objective.model), seed=seed,
            seconds=time.perf_counter() - began,
        )  # fmt: skip


def _box(ascent: Ascent, eps: float, iterations: int) -> SharpnessMeasure:
    bounds = eps * (ascent.origin.abs() + 1)
    climb = _Climb(ascent, torch.from_numpy, lambda gradient: gradient.cpu().numpy())
    return _keskar("keskar", ascent, climb, bounds.cpu().numpy(), eps, iterations)


def _subspace(ascent: Ascent, eps: float, iterations: int, num_columns: int, seed: int) -> SharpnessMeasure:
    size = ascent.origin.numel()
    columns = min(num_columns, size)
    if 8 * columns * size > LARGEST_SUBSPACE_BYTES:
        raise ExamineError(
            "the random subspace",
            expected=f"at most {LARGEST_SUBSPACE_BYTES >> 30} GiB",
            got=f"{columns} columns of {size:,} parameters",
            do=f"ask for {max(1, LARGEST_SUBSPACE_BYTES // (8 * size))} columns or fewer",
        )
    draws = torch.Generator().manual_seed(seed)
    matrix = torch.randn(size, columns, generator=draws, dtype=torch.float64)  # A, [n, p]
    # A⁺x by the normal equations: the columns of a tall random matrix are far from dependent.
    inside = torch.linalg.solve(matrix.T @ matrix, matrix.T @ ascent.origin.cpu())
    bounds = eps * (inside.abs() + 1)
    climb = _Climb(ascent, lambda z: matrix @ torch.from_numpy(z), lambda gradient: (matrix.T @ gradient.cpu()).numpy())
    return _keskar("keskar-subspace", ascent, climb, bounds.numpy(), eps, iterations)


class _Overflow(Exception):
    """The loss is not finite at a point of the neighbourhood."""


class _Climb:
    """The negative of f(x + y(z)) for scipy, which minimises; remembers the highest f."""

    def __init__(self, ascent: Ascent, forth: Callable[[Floats], Tensor], back: Callable[[Tensor], Floats]) -> None:
        self.ascent, self.forth, self.back = ascent, forth, back
        self.highest = ascent.loss
        self.evaluations = 0

    def __call__(self, z: Floats) -> tuple[float, Floats]:
        loss, gradient = self.ascent.at(self.forth(z))
        self.evaluations += 1
        if not math.isfinite(loss) or not bool(torch.isfinite(gradient).all()):
            self.highest = math.inf
            raise _Overflow
        self.highest = max(self.highest, loss)
        return -loss, -self.back(gradient)


def _keskar(kind: str, ascent: Ascent, climb: _Climb, bounds: Floats, eps: float, iterations: int) -> SharpnessMeasure:
    from scipy.optimize import minimize

    converged = False
    try:
        ended = minimize(
            climb, np.zeros_like(bounds), jac=True, method="L-BFGS-B", bounds=np.stack([-bounds, bounds], axis=1),
            options={"maxiter": iterations},
        )  # fmt: skip
        converged = bool(ended.success)
    except _Overflow:
        pass
    return SharpnessMeasure(
        kind=kind, radius=eps, value=100 * (climb.highest - ascent.loss) / (1 + ascent.loss), highest=climb.highest,
        evaluations=climb.evaluations, converged=converged,
    )  # fmt: skip


def _ball(ascent: Ascent, *, kind: str, rho: float, steps: int, seed: int) -> SharpnessMeasure:
    scale = ascent.origin.abs() + ADAPTIVE_OFFSET if kind == "adaptive" else torch.ones_like(ascent.origin)
    slope = scale * ascent.gradient
    if float(slope.norm()) == 0.0:  # no direction is steepest: take any
        slope = torch.randn(len(slope), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(slope)
    highest, first, evaluations, converged = ascent.loss, math.nan, 0, False
    for step in range(steps):
        loss, gradient = ascent.at(rho * scale * slope / slope.norm())
        evaluations += 1
        if not math.isfinite(loss):
            highest = math.inf
        if step == 0:
            first = loss
        if not math.isfinite(loss) or not bool(torch.isfinite(gradient).all()):
            break
        risen, highest = loss - highest, max(highest, loss)
        if step > 0 and abs(risen) <= 1e-9 * max(1.0, abs(loss)):
            converged = True
            break
        slope = scale * gradient
        if float(slope.norm()) == 0.0:
            break
    return SharpnessMeasure(
        kind=kind, radius=rho, value=highest - ascent.loss, highest=highest, first_order=first,
        evaluations=evaluations, converged=converged,
    )  # fmt: skip
