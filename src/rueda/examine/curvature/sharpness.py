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
repeat it with the gradient at that point. For a convex f every such step raises f; the best point is kept in any case.

Every maximum is the highest value that was *found*; the true maximum is at least as high.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.curvature.ascent import Ascent
from rueda.examine.curvature.hessian import batch_norm_words
from rueda.examine.objective.objective import Objective
from rueda.records.curvature import SharpnessMeasure, SharpnessResult
from rueda.world import World

KINDS = ("keskar", "keskar-subspace", "sam", "adaptive")
ADAPTIVE_OFFSET = 0.01
"""eta of ASAM, which lets parameters that are zero move as well"""
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
) -> SharpnessResult:
    """Measure how far the loss rises near a model.

    Args:
        objective: the mean loss of the model on some examples.
        kinds: the measures; see the table above.
        epsilons: the sizes of Keskar's box; the defaults of all radii are those of the papers.
        rho: the radius of the ball.
        adaptive_rho: the radius of the relative ball.
        iterations: the most iterations of L-BFGS-B, and the most steps in a ball.
        num_columns: the dimension of the random subspace.
        seed: the seed of the subspace, and of the first direction where the gradient is zero.
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
    unknown, radii, counts = sorted(set(kinds) - set(KINDS)), [*epsilons, rho, adaptive_rho], (iterations, num_columns)
    for holds, expected, got in (
        (kinds and not unknown, f"kinds among {', '.join(KINDS)}", unknown or "none"),
        (epsilons and all(0 < radius < math.inf for radius in radii), "radii above 0", radii),
        (min(counts) >= 1, "iterations and columns of 1 or more", counts),
    ):
        if not holds:
            raise ExamineError("sharpness", expected=expected, got=got, do="correct them")
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
                found.append(_keskar(ascent, radius, iterations))
            elif kind == "keskar-subspace":
                matrix = _subspace(ascent.origin.numel(), num_columns, seed)
                found.append(_keskar(ascent, radius, iterations, matrix))
            else:
                found.append(_ball(ascent, kind=kind, rho=radius, steps=iterations, seed=seed))
        if progress is not None:
            progress("done", len(work), len(work))
        return SharpnessResult(
            loss=ascent.loss, examples=objective.num_examples, parameters=objective.num_parameters,
            measures=tuple(found), batch_norm=batch_norm_words(objective.model), seed=seed,
            seconds=time.perf_counter() - began,
        )  # fmt: skip


def _subspace(size: int, num_columns: int, seed: int) -> Tensor:
    """Draw A, [n, p], with standard normal entries."""
    columns = min(num_columns, size)
    if 8 * columns * size > LARGEST_SUBSPACE_BYTES:
        raise ExamineError(
            "the random subspace",
            expected=f"at most {LARGEST_SUBSPACE_BYTES >> 30} GiB",
            got=f"{columns} columns of {size:,} parameters",
            do=f"ask for {max(1, LARGEST_SUBSPACE_BYTES // (8 * size))} columns or fewer",
        )
    return torch.randn(size, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class _Overflow(Exception):
    """The loss is not finite at a point of the neighbourhood."""


def _keskar(ascent: Ascent, eps: float, iterations: int, matrix: Tensor | None = None) -> SharpnessMeasure:
    """Maximise the loss by L-BFGS-B, which minimises its negative, in a box of all parameters or of a subspace."""
    from scipy.optimize import minimize

    inside, highest, evaluations, converged = ascent.origin.cpu(), ascent.loss, 0, False
    if matrix is not None:
        # A⁺x by the normal equations: the columns of a tall random matrix are far from dependent.
        inside = torch.linalg.solve(matrix.T @ matrix, matrix.T @ inside)
    bounds = (eps * (inside.abs() + 1)).numpy()

    def negative(z: Floats) -> tuple[float, Floats]:
        nonlocal highest, evaluations
        step = torch.from_numpy(z)
        loss, gradient = ascent.at(step if matrix is None else matrix @ step)
        evaluations += 1
        if not math.isfinite(loss) or not bool(torch.isfinite(gradient).all()):
            highest = math.inf
            raise _Overflow
        highest = max(highest, loss)
        return -loss, -(gradient.cpu() if matrix is None else matrix.T @ gradient.cpu()).numpy()

    with suppress(_Overflow):
        box = np.stack([-bounds, bounds], axis=1)
        options = {"maxiter": iterations}
        found = minimize(negative, np.zeros_like(bounds), jac=True, method="L-BFGS-B", bounds=box, options=options)
        converged = bool(found.success)
    return SharpnessMeasure(
        kind="keskar" if matrix is None else "keskar-subspace", radius=eps, highest=highest, converged=converged,
        value=100 * (highest - ascent.loss) / (1 + ascent.loss), evaluations=evaluations,
    )  # fmt: skip


def _ball(ascent: Ascent, *, kind: str, rho: float, steps: int, seed: int) -> SharpnessMeasure:
    scale = ascent.origin.abs() + ADAPTIVE_OFFSET if kind == "adaptive" else torch.ones_like(ascent.origin)
    slope = scale * ascent.gradient
    if float(slope.norm()) == 0.0:  # no direction is the steepest one: a random one is used
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
