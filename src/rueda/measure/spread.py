"""The middle of repeated measurements and how far they are apart, which a few outliers do not change."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and half the distance between the quartiles; 0 for a single value.

    >>> median_and_spread([1.0, 2.0, 3.0, 4.0, 90.0]), median_and_spread([2.0])
    ((3.0, 22.75), (2.0, 0.0))
    """
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [0.0, 0.0, 0.0]
    return statistics.median(values), (quartiles[2] - quartiles[0]) / 2
