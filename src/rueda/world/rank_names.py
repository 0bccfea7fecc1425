"""Naming ranks in a line for the user."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 8


def name_ranks(ranks: Iterable[int]) -> str:
    """Name ranks in order; of many only the first ones.

    >>> name_ranks([3]), name_ranks([2, 0, 1]), name_ranks(range(100))
    ('rank 3', 'ranks 0, 1, 2', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more')
    """
    known = sorted(ranks)
    more = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
    return f"rank{'s' * (len(known) != 1)} {', '.join(map(str, known[:_MOST]))}{more}"
