"""Fit three small models to measured times and sizes.

=============  ==========================================  ===========================================
all-reduce     seconds = latency + bytes / bandwidth       :func:`fit_line`
joined step    T = (compute^g + exchange^g)^(1/g)          :func:`fit_overlap`, Pollux (OSDI 2021)
memory         bytes = fixed + per_example x batch         :func:`fit_memory`
=============  ==========================================  ===========================================

Times span orders of magnitude, and other load on the machine can only lengthen them, so errors are relative
(logarithms) and outliers have little weight (soft-L1 loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rueda.errors import ProfileError
from rueda.records.profile import overlapped

Floats = NDArray[np.float64]

MOST_OVERLAP = 10.0
"""largest g: beyond it a step is as long as the longer of its two parts"""
_GUESS_WEIGHT = 0.02
"""weight of the initial guess of the exchange, which matters if the steps do not determine it"""
_SCALE = 0.1
"""relative errors above this are treated as outliers"""
_FASTEST = 1000.0
"""times the bandwidth of the largest message by itself: above it, times do not determine the bandwidth"""


@dataclass(frozen=True, kw_only=True)
class Line:
    """seconds = latency + bytes / bandwidth."""

    latency: float
    bandwidth: float
    residual: float
    """root mean square of (measured - fitted) / fitted"""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """T = (compute^gamma + exchange^gamma)^(1/gamma)."""

    exchange: float
    gamma: float
    residual: float


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit latency and bandwidth to the times of messages of several sizes, in bytes.

    Times that do not grow with the size, because something else disturbed the short messages, do not determine the
    bandwidth; it is then a thousand times what the largest message would have by itself, and not endless.

    >>> sizes = [4, 4096, 65536, 2**20, 2**24]
    >>> line = fit_line(sizes, [2e-4 + size / 1e9 for size in sizes])
    >>> round(line.latency, 6), round(line.bandwidth / 1e9, 3), round(line.residual, 3)
    (0.0002, 1.0, 0.0)
    """
    from scipy.optimize import least_squares

    x, y = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    if len(set(sizes)) < 2 or not (y > 0).all():
        raise ProfileError(f"a line needs positive times at two sizes or more, got {len(set(sizes))}; measure more")

    def errors(constants: Floats) -> Floats:
        return np.asarray(np.logaddexp(constants[0], np.log(x) - constants[1]) - np.log(y))

    largest = int(x.argmax())
    start = np.array([np.log(y.min()), np.log(x[largest] / y[largest])])
    most = np.array([np.inf, start[1] + np.log(_FASTEST)])
    found = least_squares(errors, start, bounds=(-np.inf, most), loss="soft_l1", f_scale=_SCALE)
    fitted = np.exp(errors(found.x)) * y
    return Line(
        latency=float(np.exp(found.x[0])), bandwidth=float(np.exp(found.x[1])), residual=_relative(y, fitted)
    )  # fmt: skip


def fit_overlap(compute: Sequence[float], joined: Sequence[float], guess: float) -> Overlap:
    """Fit the time of the gradient exchange and gamma to steps with and without communication.

    Args:
        compute: seconds of steps without communication, at several local batches.
        joined: seconds of the same steps with the gradient exchange.
        guess: seconds of the exchange by itself; it decides if the steps do not determine it, because there is only
            one batch, or because the exchange is too short to be seen.

    >>> compute = [0.01, 0.03, 0.09]
    >>> found = fit_overlap(compute, [(c**2 + 0.04**2) ** 0.5 for c in compute], guess=0.03)
    >>> round(found.exchange, 3), round(found.gamma, 1)
    (0.04, 2.0)
    """
    from scipy.optimize import least_squares

    x, y = np.asarray(compute, dtype=float), np.asarray(joined, dtype=float)
    if x.shape != y.shape or not len(x) or not (guess > 0 and (x > 0).all() and (y > 0).all()):
        raise ProfileError("the fit of the overlap needs pairs of step times and a guess of the exchange, all positive")

    def model(constants: Floats) -> Floats:
        exchange, gamma = np.exp(constants)
        return np.log([overlapped(one, exchange, gamma) for one in compute])

    def errors(constants: Floats) -> Floats:
        return np.append(model(constants) - np.log(y), _GUESS_WEIGHT * (constants[0] - np.log(guess)))

    bounds = ([np.log(guess) - 3, 0.0], [np.log(guess) + 3, np.log(MOST_OVERLAP)])
    starts = [np.array([np.log(guess), np.log(gamma)]) for gamma in (1.1, 2.0, 6.0)]
    fits = [least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=_SCALE) for start in starts]
    best = min(fits, key=lambda fit: float(fit.cost)).x
    exchange, gamma = np.exp(best)
    return Overlap(
        exchange=float(exchange), gamma=float(max(1.0, gamma)), residual=_relative(y, np.exp(model(best)))
    )  # fmt: skip


def fit_memory(batches: Sequence[int], sizes: Sequence[int]) -> tuple[float, float] | None:
    """Fit fixed bytes and bytes per example; return None if memory does not grow with the batch.

    At small batches something else (such as reading the data) sets the peak, so only the three largest batches count.

    >>> fixed, per_example = fit_memory([8, 16, 32, 64, 128], [900, 900, 980, 1300, 1940])
    >>> round(fixed), round(per_example, 2)
    (660, 10.0)
    """
    pairs = sorted(zip(batches, sizes, strict=True))[-3:]
    if len(pairs) < 2:
        return None
    count, total, in_all = len(pairs), sum(x for x, _ in pairs), sum(y for _, y in pairs)
    # Whole numbers, so that equal sizes have a slope of exactly 0 on every processor.
    rise = count * sum(x * y for x, y in pairs) - total * in_all
    width = count * sum(x * x for x, _ in pairs) - total**2
    if rise <= 0 or width == 0:
        return None
    return (in_all - rise / width * total) / count, rise / width


def _relative(measured: Floats, fitted: Floats) -> float:
    return float(np.sqrt(np.mean(((measured - fitted) / fitted) ** 2)))
