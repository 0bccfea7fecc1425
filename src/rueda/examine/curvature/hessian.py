"""The Hessian of a trained model: its largest eigenvalues, its trace, its spectral density, each with its errors.

The largest eigenvalue is the curvature along the steepest direction out of the minimum, the usual number for *sharp*.
Gradient descent with rate eta is stable on a quadratic only below 2 / eta. The trace is the sum of all curvatures; the
density shows that most of them are nearly zero and a few, about as many as there are classes, stand out.

The three share one Hessian-vector product (:mod:`rueda.examine.curvature.product`), and the trace uses the basis that
the search for eigenvalues has found. Eigenvalues and trace have two errors: a numerical one, and one that comes from
which examples were drawn (:mod:`rueda.examine.curvature.sampling`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rueda.errors import ExamineError
from rueda.examine.curvature.density import Density, spectral_density
from rueda.examine.curvature.lanczos import Extremes, extreme_eigenvalues, vector_norm
from rueda.examine.curvature.product import MEMORY_BYTES, CurvatureProduct
from rueda.examine.curvature.sampling import NUM_VECTORS, group_curvatures
from rueda.examine.curvature.trace import estimate_trace, random_signs
from rueda.examine.objective.objective import Objective
from rueda.nn.convert import BatchNorm
from rueda.records.curvature import Eigenvalue, HessianResult, SpectralDensity
from rueda.world import World

LARGEST_BASIS = 80
"""the most basis vectors of the search for eigenvalues; fewer if they do not fit in ``memory_bytes``"""
SAMPLING_PROBES = 4
"""random vectors for the trace of each group of examples, outside the leading vectors"""
Progress = Callable[[str, int, int], None]
"""called with the name of the stage, the number of products so far and the largest number"""


def hessian(
    objective: Objective,
    *,
    num_eigenvalues: int = 1,
    tolerance: float = 1e-3,
    most_products: int = 300,
    trace: bool = True,
    trace_tolerance: float = 0.02,
    density: bool = True,
    num_probes: int = 6,
    num_steps: int = 40,
    sampling: bool = True,
    seed: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    world: World | None = None,
    progress: Progress | None = None,
) -> HessianResult:
    """Compute eigenvalues, trace and spectral density of the Hessian at the model's parameters.

    Args:
        objective: the mean loss of the model on some examples.
        num_eigenvalues: how many of the largest eigenvalues to compute.
        tolerance: the relative error at which an eigenvalue has converged.
        most_products: the most products for the eigenvalues; the trace gets a third of that number on top.
        trace: whether to estimate the trace.
        trace_tolerance: the standard error divided by the value at which the estimate of the trace stops.
        density: whether to estimate the spectral density.
        num_probes: the number of random vectors of the density.
        num_steps: products for each probe of the density.
        sampling: whether to estimate the errors that come from which examples were drawn, for the price of about
            a dozen products.
        seed: the seed of all random vectors, and of the division of the examples into groups.
        memory_bytes: memory for graphs that are kept from product to product, and as much again for vectors.
        world: the workers that share the examples; the numbers do not depend on how many there are.
        progress: see :data:`Progress`.

    >>> x = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64).sqrt())
    >>> model = nn.Linear(3, 1, bias=False).double()
    >>> half_square = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> found = hessian(Objective(model, half_square, x, torch.zeros(3, 1)), tolerance=1e-10)  # H = diag(3, 2, 1) / 3
    >>> round(found.largest, 9), round(found.trace, 9), found.converged
    (1.0, 2.0, True)
    """
    if num_eigenvalues < 1:
        raise ExamineError("eigenvalues", expected="1 or more", got=num_eigenvalues, do="ask for some")
    began = time.perf_counter()

    def told(what: str, most: int) -> Callable[..., None] | None:
        return None if progress is None else lambda done, *_: progress(what, done, most)

    with CurvatureProduct(objective, memory_bytes=memory_bytes, world=world) as product:
        vector_bytes = product.gradient.numel() * product.gradient.element_size()
        found = extreme_eigenvalues(
            product,
            start_vector(product.gradient, seed),
            count=num_eigenvalues,
            tolerance=tolerance,
            most_products=most_products,
            basis_size=min(LARGEST_BASIS, memory_bytes // vector_bytes),
            seed=seed,
            step=told("eigenvalues", most_products),
        )
        most = max(2, most_products // 3)
        traced = density_found = None
        if trace:
            traced = estimate_trace(
                product, product.gradient, tolerance=trace_tolerance, most_products=most, known=found, seed=seed + 1,
                step=told("trace", most),
            )  # fmt: skip
        if density:
            density_found = spectral_density(
                product, product.gradient, num_probes=num_probes, num_steps=num_steps, seed=seed + 2,
                step=told("density", num_probes * num_steps),
            )  # fmt: skip
        drawn = _Drawn()
        if sampling:
            drawn = _sampling(objective, found, product, trace=trace, seed=seed + 3, memory=memory_bytes, world=world)
        eigenvalues = tuple(
            Eigenvalue(value=float(value), residual=float(residual), error=float(error), sampling_error=sampled)
            for value, residual, error, sampled in zip(
                found.values,
                found.residuals,
                found.errors,
                drawn.eigenvalues or (None,) * len(found.values),
                strict=True,
            )
        )
        return HessianResult(
            loss=product.loss, gradient_norm=vector_norm(product.gradient), examples=objective.num_examples,
            parameters=objective.num_parameters, converged=found.converged, tolerance=tolerance,
            eigenvalues=eigenvalues, groups=drawn.groups, trace_sampling_error=drawn.trace,
            lowest=Eigenvalue(value=found.opposite, residual=found.opposite_residual, error=found.opposite_residual),
            trace=None if traced is None else traced.value, trace_error=None if traced is None else traced.error,
            trace_converged=None if traced is None else traced.converged,
            trace_probes=None if traced is None else traced.num_products,
            products=product.num_products + drawn.products,
            density=None if density_found is None else _curve(density_found), seed=seed,
            batch_norm=batch_norm_words(objective.model), seconds=time.perf_counter() - began,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """The standard errors that come from which examples were drawn."""

    eigenvalues: Sequence[float | None] | None = None
    trace: float | None = None
    groups: int | None = None
    products: int = 0


def _sampling(
    objective: Objective, found: Extremes, product: CurvatureProduct, *, trace: bool, seed: int, memory: int,
    world: World | None,
) -> _Drawn:  # fmt: skip
    """Estimate them on the leading Ritz vectors, and outside of these by a few probes."""
    leading = np.linalg.eigh(found.matrix)[1][:, ::-1][:, : max(NUM_VECTORS, len(found.values))]
    vectors = torch.from_numpy(leading.T.copy()).to(found.basis) @ found.basis
    draws = torch.Generator().manual_seed(seed)
    signs = [
        random_signs(product.gradient, draws) for _ in range(SAMPLING_PROBES * (trace and len(vectors) < product.size))
    ]
    probes = torch.stack([sign - (vectors @ sign) @ vectors for sign in signs]) if signs else vectors[:0]
    groups = group_curvatures(objective, vectors, probes, seed=seed, memory_bytes=memory, world=world)
    return _Drawn(
        eigenvalues=groups.eigenvalue_errors(len(found.values)), trace=groups.trace_error() if trace else None,
        groups=len(groups.matrices), products=len(vectors) + len(probes),
    )  # fmt: skip


def start_vector(like: Tensor, seed: int) -> Tensor:
    """Return a random vector, of the same size and type as another one, from which eigenvalues are searched.

    It has a component along every eigenvector, and the bound of the largest eigenvalue rests on how small that can be.
    The gradient of a trained network lies mostly among the top eigenvectors (Gur-Ari, Roberts and Dyer 2018,
    1812.04754), but adding it costs products: they are found sooner, and what is left of the random part takes longer
    to show that there is no larger eigenvalue.
    """
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(like.numel(), generator=draws, dtype=torch.float64).to(like)


def batch_norm_words(model: nn.Module) -> str:
    """Describe which batch-norm statistics were used."""
    tracked = [each for each in model.modules() if isinstance(each, BatchNorm)]
    if not tracked:
        return "none"
    return "running statistics" if all(each.running_mean is not None for each in tracked) else "batch statistics"


def _curve(density: Density) -> SpectralDensity:
    curve = density.curve()
    (mean, mean_error), (square, square_error) = density.moment(1), density.moment(2)
    return SpectralDensity(
        positions=tuple(curve.positions.tolist()), values=tuple(curve.values.tolist()), width=curve.width,
        errors=tuple(curve.errors.tolist()), lows=tuple(curve.lows.tolist()), highs=tuple(curve.highs.tolist()),
        mean=mean, mean_error=mean_error, mean_square=square, mean_square_error=square_error,
        negative=1.0 - density.share_above(-curve.width)[0],
        probes=len(density.nodes), steps=max(len(nodes) for nodes in density.nodes),
    )  # fmt: skip
