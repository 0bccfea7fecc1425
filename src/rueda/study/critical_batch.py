"""Fits the curve of updates against batch size (:mod:`rueda.records.batch_curve`) to measured points.

Smin (the smallest number of updates) and Bcrit (the critical batch size) are fitted in log space, because the points
span orders of magnitude. The interval of Bcrit comes from a bootstrap of the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rueda.errors import RunError
from rueda.records.batch_curve import BatchCurve

Floats = NDArray[np.float64]


def fit_curve(
    batches: Sequence[float], updates: Sequence[float], *, num_samples: int = 400, seed: int = 0
) -> BatchCurve:
    """Fit Smin (fewest updates) and Emin (fewest examples) to measured pairs (batch, updates).

    Args:
        batches: batch sizes, at least three different ones.
        updates: number of updates to the target at each batch size.
        num_samples: number of bootstrap samples.
        seed: seed of the bootstrap.

    >>> batches = [16, 64, 256, 1024, 4096]
    >>> curve = fit_curve(batches, [100 * (1 + 400 / batch) for batch in batches])
    >>> round(curve.smallest_updates), round(curve.smallest_examples), round(curve.critical_batch), curve.regime(16)
    (100, 40000, 400, 'perfect scaling')
    """
    sizes, steps = np.asarray(batches, dtype=float), np.log(np.asarray(updates, dtype=float))
    if len(set(batches)) < 3:
        raise RunError(f"a curve of two constants needs three batch sizes or more, got {len(set(batches))}; add some")
    best = _least_squares(sizes, steps)
    fitted = _model(best, sizes)
    # Residuals are smaller than the true errors, since two degrees of freedom went into the constants: rescale them.
    residuals = (steps - fitted) * np.sqrt(len(steps) / max(1, len(steps) - 2))
    draws = np.random.default_rng(seed)
    samples = [
        _least_squares(sizes, fitted + draws.choice(residuals, len(residuals)), start=best)[1]
        for _ in range(num_samples)
    ]
    low, high = np.exp(np.percentile(samples, [5, 95]))
    smallest, critical = np.exp(best)
    return BatchCurve(
        smallest_updates=float(smallest), smallest_examples=float(smallest * critical),
        critical_batch=float(critical), interval=(float(low), float(high)),
    )  # fmt: skip


def _model(constants: Floats, sizes: Floats) -> Floats:
    """Return log S at each batch size, for the constants (log Smin, log Bcrit)."""
    return np.asarray(constants[0] + np.logaddexp(0.0, constants[1] - np.log(sizes)))


def _least_squares(sizes: Floats, steps: Floats, start: Floats | None = None) -> Floats:
    from scipy.optimize import least_squares

    if start is None:
        start = np.array([steps.min() - 0.1, np.log(sizes).mean()])
    # Points that show no bend do not determine both constants, so the constants are bounded to the range of the points.
    reach = 8.0
    low = np.array([steps.min() - reach, np.log(sizes.min()) - reach])
    high = np.array([steps.max() + 1.0, np.log(sizes.max()) + reach])
    found = least_squares(
        lambda constants: _model(constants, sizes) - steps, np.clip(start, low + 1e-6, high - 1e-6), bounds=(low, high)
    )
    return np.asarray(found.x)
