"""The share of a batch that one worker takes: contiguous, and as equal as possible."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """The rows of a batch that a worker has.

    A batch with fewer examples than workers leaves some without any. Such a worker computes on the first example, so
    that it takes part in every collective, and counts for nothing.
    """

    low: int
    """index of the first row"""
    rows: int
    """number of rows: at least 1"""
    whole: int
    """number of rows of the entire batch"""
    num_counted: int
    """number of rows that count: 0, or ``rows``"""

    def factor(self, size: int) -> float:
        """Return what the gradient of the mean over this share is multiplied by before it is averaged: n N / B."""
        return self.num_counted * size / self.whole


def share_of(whole: int, rank: int, size: int) -> Share:
    """Return the share of a rank in a batch.

    >>> [share_of(5, rank, 3)[:2] for rank in range(3)]
    [(0, 2), (2, 2), (4, 1)]
    >>> share_of(1, 2, 3)
    Share(low=0, rows=1, whole=1, num_counted=0)
    """
    each, more = divmod(whole, size)
    count = each + (rank < more)
    if count == 0:
        return Share(0, min(1, whole), whole, 0)
    return Share(rank * each + min(rank, more), count, whole, count)
