"""The noise of a learning curve: how far, and how much alike, the mean errors at its sizes are off.

Two things make a mean error uncertain: trainings differ, which repeats show, and the test set is finite, which they do
not show, since all of them share it.

**Degrees of freedom.** Repeats say little about their own variance, the binomial variance of counting is known. As
Satterthwaite (1946) has it for a sum of variances, of which one is estimated with f degrees of freedom and makes up a
share c of the sum,

    degrees of freedom of the sum = f / c^2

The share is that in the noise which bends the curve: what shifts all points alike hardly changes its exponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rueda.plan.likely_laws import Floats
from rueda.records.forecast import CurvePoint

_SHARED = 0.5
_KEPT = 0.9
_PRIOR = 4


class CurveNoise(NamedTuple):
    """The covariance of mean errors, [sizes, sizes], and the degrees of freedom with which it was estimated."""

    covariance: Floats
    freedom: float
    """0 if there are no repeats"""


def noise_of(points: Sequence[CurvePoint], test_examples: int, *, is_fraction: bool = True) -> CurveNoise:
    """Estimate the covariance of the mean errors of some points.

    With v = p (1 - p) / n for an error p counted on n test examples, it is the sum of two parts:

    - *Among repeats*, independent: variance / repeats. Three repeats say little about their own variance, so it is
      averaged with a pooled one (a deviation proportional to the error) that counts as four further repeats. It is at
      least v / 2, since examples near the decision boundary fall on either side by chance.
    - *The test set*, which all points share: v / 2, with a correlation of 0.9 between a size and twice that size, 0.81
      for four times: a test set that is hard at one size is hard at the next.

    The halves and the 0.9 were measured: for `glyphs-cnn` from 188 to 12,000 examples, 0.25 to 0.55 of v is common to
    the repeats, with a correlation of 0.92 over 4 times the data and 0.58 over 64 times.

    The mean p of losses or other values that are not fractions has v = p^2 / n: their standard deviation over the
    examples is assumed to equal their mean, which is roughly true of a squared error or a cross-entropy.

    >>> one = CurvePoint(examples=100, passes=1.0, updates=1, errors=(0.2,))
    >>> float(noise_of([one], test_examples=400).covariance[0, 0] ** 0.5)  # sqrt(0.2 * 0.8 / 400)
    0.02
    """
    errors = np.array([point.error or 0.0 for point in points])
    spreads = np.array([point.spread or 0.0 for point in points])
    freedoms = np.array([max(0, len(point.errors) - 1) for point in points])
    # An error of 0 on n examples is known only to 1 / n.
    counted = np.maximum(errors * (1 - errors) / test_examples, test_examples**-2.0)
    if not is_fraction:
        counted = np.maximum(errors**2, 1e-300) / test_examples
    common = (freedoms * spreads**2).sum() / max((freedoms * errors**2).sum(), 1e-300) * errors**2
    among = (_PRIOR * common + freedoms * spreads**2) / (_PRIOR + freedoms)
    among = np.maximum(among, (1 - _SHARED) * counted) / (freedoms + 1)
    doublings = np.log2([point.examples for point in points])
    together = _KEPT ** np.abs(doublings[:, None] - doublings[None])
    whole = np.diag(among) + _SHARED * together * np.sqrt(np.outer(counted, counted))
    # The shares in the variance of what is left without the common shift, each error in units of its deviation.
    relative, own = whole / np.sqrt(np.outer(np.diag(whole), np.diag(whole))), among / np.diag(whole)
    share = own.sum() * (1 - 1 / len(own)) / (len(own) - relative.mean() * len(own)) if len(own) > 1 else 1.0
    return CurveNoise(whole, float(freedoms.sum() / share**2))
