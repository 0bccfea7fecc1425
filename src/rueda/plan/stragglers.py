"""Stragglers: a synchronous step takes as long as the step of its slowest worker.

If the step times of N workers are independent and normally distributed with mean t and standard deviation s t, the
slowest one takes on average

    t (1 + s m(N)),    m(N) = E[max of N standard normals] = ∫ x d(Φ(x)^N)

m grows slowly: 0.56 for 2 workers, 1.42 for 8, 2.8 for 256, 4.1 for 27,360.
"""

from __future__ import annotations

import math
from functools import cache

QUARTILE = 0.6744897501960817
"""half the distance between the quartiles of a standard normal distribution"""


@cache
def expected_maximum(count: int) -> float:
    """Return the expected maximum of independent standard normal numbers.

    >>> [round(expected_maximum(count), 3) for count in (1, 2, 3, 8)]
    [0.0, 0.564, 0.846, 1.424]
    """
    if count == 1:
        return 0.0
    # E[max] = ∫ over x > 0 of (1 - Φ(x)^N) - Φ(-x)^N, by the midpoint rule; the tails beyond 9 are below 1e-14.
    width = 9 / 4000
    points = ((index + 0.5) * width for index in range(4000))
    return width * sum(-math.expm1(count * math.log1p(-_above(x))) - _above(x) ** count for x in points)


def slowdown(workers: int, deviation: float) -> float:
    """Return how many times longer the slowest worker's step is than the mean one.

    Args:
        workers: the number of workers.
        deviation: standard deviation of their step times, as a fraction of the mean.

    >>> round(slowdown(8, 0.015), 4)
    1.0214
    """
    return 1 + deviation * expected_maximum(workers)


def _above(x: float) -> float:
    """Return the probability that a standard normal number exceeds x."""
    return 0.5 * math.erfc(x / math.sqrt(2))
