"""The reduction operations, with the names and numbers that Horovod gives them."""

from __future__ import annotations

import sys

from rueda.hvd.common.exceptions import OperationError
from rueda.hvd.common.util import get_average_backwards_compatibility_fun
from rueda.hvd.core.entries import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT
_choose = get_average_backwards_compatibility_fun(sys.modules[__name__])


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the operation that ``op=`` or the older ``average=`` asks for; the default is Average.

    >>> handle_average_backwards_compatibility(None, None) == Average
    True
    """
    chosen: int = _choose(op, average)
    if chosen not in range(6):
        raise OperationError(f"op: expected Average, Sum, Adasum, Min, Max or Product, got {op!r}; choose one of these")
    return chosen
