"""Student's t: the quantile from which the intervals of few measurements are made, and their confidence level."""

from __future__ import annotations

CONFIDENCE = 0.9
"""probability that an interval contains the truth; each of its ends is then a one-sided test at 5 %"""


def quantile(freedom: float, probability: float = (1 + CONFIDENCE) / 2) -> float:
    """Return the quantile of Student's distribution; by default the end of the two-sided interval, in standard errors.

    >>> round(quantile(2), 3), round(quantile(15), 3), round(quantile(1e9, 0.975), 2)
    (2.92, 1.753, 1.96)
    """
    from scipy.special import stdtrit  # imported here, since records are read without it

    return float(stdtrit(freedom, probability))
