"""The reductions by Horovod's names and numbers."""

from __future__ import annotations

from rueda.hvd.core.entries import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Turn the old ``average=`` and the new ``op=`` into an operation; without either it is the average.

    >>> handle_average_backwards_compatibility(None, False) == Sum
    True
    """
    if op is not None:
        if average is not None:
            raise ValueError("op and average: expected one of them, got both; drop average")
        if op not in range(6):
            raise ValueError(f"op: expected Average, Sum, Adasum, Min, Max or Product, got {op!r}")
        return op
    return Sum if average is False else Average
