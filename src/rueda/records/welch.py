"""Welch's interval for the difference of two means, and how many values of each would decide it.

Two rows of a study have few seeds and spreads of their own. For means m1, m2 of n1, n2 values with sample standard
deviations s1, s2, Welch (1947) estimates the variance of m1 - m2 without assuming that the spreads are equal,

    v = s1^2 / n1 + s2^2 / n2

and the interval is m1 - m2 ± t sqrt(v), where t is the quantile of Student's distribution with

    v^2 / ((s1^2 / n1)^2 / f1 + (s2^2 / n2)^2 / f2)

degrees of freedom (Satterthwaite 1946); f = n - 1 are those of each deviation. The interval has 90 %, so that each of
its ends is a one-sided test at 5 %: "no worse than by a tolerance" is claimed wrongly in at most 1 of 20 cases.

**One value** has no spread of its own. It may borrow the deviation that is pooled over several samples, if these show
no sign of unequal spreads (Bartlett's test at 5 %); f is then the sum of theirs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rueda.records.student import CONFIDENCE, quantile

POWER = 0.8
"""probability with which :func:`values_to_decide` values decide, if difference and spreads are those measured"""
MOST = 100
"""beyond so many values nobody asks for the exact number"""
_UNEQUAL = 0.05


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The mean of some values and their standard deviation."""

    mean: float
    deviation: float
    count: int
    freedom: float
    """degrees of freedom of the deviation: ``count - 1`` if it is the sample's own"""
    is_pooled: bool = False
    """the deviation is that of other samples"""


def half_width(first: Sample, second: Sample, slope: float = 1.0, confidence: float = CONFIDENCE) -> float:
    """Return half the length of the interval of ``first.mean - slope * second.mean``.

    >>> one = Sample(mean=0.90, deviation=0.01, count=3, freedom=2)
    >>> other = Sample(mean=0.88, deviation=0.02, count=5, freedom=4)
    >>> round(half_width(one, other), 4)
    0.0207
    """
    variances = first.deviation**2 / first.count, (slope * second.deviation) ** 2 / second.count
    if first.is_pooled and second.is_pooled:  # the same deviation twice, not two independent ones
        freedom = first.freedom
    else:
        freedom = _freedom(variances, (first.freedom, second.freedom))
    return quantile(freedom, (1 + confidence) / 2) * math.sqrt(sum(variances))


def values_to_decide(first: Sample, second: Sample, distance: float, slope: float = 1.0) -> int | None:
    """Return how many values each sample needs until the interval most likely excludes a limit.

    The answer is the smallest n at which the distance is as long as the sum of two quantiles times the standard error,
    the usual size of an experiment: if difference and spreads are those measured, the interval excludes the limit with
    a probability of 0.8. They are estimates, so the answer is one, too.

    Args:
        first: a sample.
        second: another sample, whose mean is multiplied by ``slope``.
        distance: how far the difference of the means is from the limit.
        slope: a factor, 1 for a plain difference.

    Returns:
        A number from 3 to 100, or None if more are needed. Two are never enough: with one degree of freedom each, the
        approximation by quantiles promises more than it holds.

    >>> one = Sample(mean=0.90, deviation=0.01, count=3, freedom=2)
    >>> values_to_decide(one, one, 0.02), values_to_decide(one, one, 0.001)
    (5, None)
    """
    variances = first.deviation**2, (slope * second.deviation) ** 2

    def decide(count: int) -> bool:
        freedom = _freedom(variances, (count - 1, count - 1))
        quantiles = quantile(freedom) + quantile(freedom, POWER)
        return quantiles * math.sqrt(sum(variances) / count) <= abs(distance)

    count = 3 + bisect_left(range(3, MOST + 1), True, key=decide)
    return count if count <= MOST else None


def pooled(samples: Sequence[tuple[float, int]]) -> tuple[float, int] | None:
    """Return the deviation that several samples share, and its degrees of freedom.

    Args:
        samples: the standard deviation and the number of values of each; those of one value are left out.

    Returns:
        None for fewer than two samples, or if Bartlett's test (1937) says that their spreads differ.

    >>> pooled([(1.0, 3), (1.4, 3), (1.2, 5)]), pooled([(1.0, 3), (90.0, 3)]), pooled([(1.0, 3), (2.0, 1)])
    ((1.2083..., 8), None, None)
    """
    several = [(deviation, count - 1) for deviation, count in samples if count > 1]
    if len(several) < 2 or any(deviation <= 0 for deviation, _ in several):
        return None
    freedom = sum(own for _, own in several)
    variance = sum(own * deviation**2 for deviation, own in several) / freedom
    unequal = freedom * math.log(variance) - sum(own * math.log(deviation**2) for deviation, own in several)
    correction = 1 + (sum(1 / own for _, own in several) - 1 / freedom) / (3 * (len(several) - 1))
    from scipy.special import chdtrc  # imported here, since a record is read without it

    if chdtrc(len(several) - 1, unequal / correction) < _UNEQUAL:
        return None
    return math.sqrt(variance), freedom


def _freedom(variances: tuple[float, float], freedoms: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of two estimated variances, after Satterthwaite."""
    squares = sum(variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True))
    return sum(variances) ** 2 / squares if squares > 0 else sum(freedoms)
