"""The trace of the Hessian, the sum of all its eigenvalues, with its standard error.

Hutchinson (1990): with random signs z (each entry +1 or -1), the mean of z'Hz over all z is tr H. With m probes the
standard error is the sample deviation over sqrt(m).

The deviation is dominated by the few large eigenvalues. So the trace of H on a known subspace is added exactly, and
only the rest is estimated: the idea of Hutch++ (Meyer, Musco, Musco and Woodruff 2021), here with the basis Q from the
search for eigenvalues, which costs no further product:

    tr H = tr Q'HQ + tr P H P,    P = I - QQ'

The probes are independent of Q, so the estimate stays unbiased.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.curvature.lanczos import Extremes
from rueda.examine.curvature.product import Product
from rueda.records.curvature import FEWEST_PROBES


@dataclass(frozen=True, kw_only=True)
class Trace:
    """An estimate of a trace."""

    value: float
    error: float
    """standard error of the value; 0 where it is exact"""
    converged: bool
    """the error is at most tolerance x |value|"""
    num_products: int


def estimate_trace(
    product: Product,
    like: Tensor,
    *,
    tolerance: float = 0.02,
    most_products: int = 100,
    known: Extremes | None = None,
    seed: int = 0,
    step: Callable[[int, float, float], None] | None = None,
) -> Trace:
    """Estimate the trace until its standard error is small.

    Args:
        product: from a vector [n] to H times it.
        like: a tensor of [n] entries, for type and device.
        tolerance: the relative standard error at which to stop, after at least 8 probes.
        most_products: the largest number of products.
        known: the result of a search for eigenvalues of the same matrix, whose subspace is treated exactly.
        seed: the seed of the probes.
        step: called after each product with (products, value, error).

    >>> diagonal = torch.arange(1.0, 101.0, dtype=torch.float64)  # random signs give a diagonal's trace exactly
    >>> found = estimate_trace(lambda v: diagonal * v, diagonal)
    >>> found.value, found.error, found.num_products
    (5050.0, 0.0, 8)
    """
    if most_products < 2 or tolerance <= 0:
        expected = "2 products or more and a tolerance above 0"
        raise ExamineError("the trace", expected=expected, got=(most_products, tolerance), do="correct them")
    exact = 0.0 if known is None else float(known.matrix.trace())
    if known is not None and len(known.basis) == like.numel():
        return Trace(value=exact, error=0.0, converged=True, num_products=0)
    draws = torch.Generator().manual_seed(seed)
    samples: list[float] = []
    while True:
        probe = random_signs(like, draws)
        if known is not None:
            probe = probe - (known.basis @ probe) @ known.basis
        samples.append(float(torch.dot(probe.double(), product(probe).double())))
        value, error = mean_and_error(samples)
        value += exact
        converged = len(samples) >= FEWEST_PROBES and error <= tolerance * abs(value)
        if step is not None:
            step(len(samples), value, error)
        if converged or len(samples) >= most_products:
            return Trace(value=value, error=error, converged=converged, num_products=len(samples))


def random_signs(like: Tensor, draws: torch.Generator) -> Tensor:
    """Draw a vector of random signs, the same on every device."""
    bits = torch.randint(0, 2, (like.numel(),), generator=draws, dtype=torch.int8)
    return (2 * bits - 1).to(like)


def mean_and_error(samples: Sequence[float]) -> tuple[float, float]:
    """Return the mean of samples and its standard error, which is infinite for a single sample."""
    error = statistics.stdev(samples) / math.sqrt(len(samples)) if len(samples) > 1 else math.inf
    return statistics.fmean(samples), error
