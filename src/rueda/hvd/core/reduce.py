"""Reductions of every dtype: the dtype that is communicated, how values are combined, how a result is scaled.

=====================  ==============================  ==========================================================
dtype                  communicated as                 because
=====================  ==============================  ==========================================================
float16, bfloat16      itself                          half the bytes; inline payloads are summed in float32
int8, uint8, int16     int32 for Average and int16     the sum over ranks may overflow where the average does not
bool                   uint8, Max for a sum            any rank (Sum, Max), all ranks (Min, Product)
uint16, uint32         int32, int64                    Gloo supports no unsigned type except uint8
complex                itself                          Sum and Average only
=====================  ==============================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import OperationError
from rueda.hvd.core import adasum
from rueda.hvd.core.entries import ADASUM, AVERAGE, MAX, MIN, OPERATIONS, PRODUCT, SUM

_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
_SMALL = (torch.int8, torch.uint8)
_HALF = (torch.float16, torch.bfloat16)
_IN_PLACE: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    SUM: Tensor.add_,
    MIN: lambda a, b: torch.minimum(a, b, out=a),
    MAX: lambda a, b: torch.maximum(a, b, out=a),
    PRODUCT: Tensor.mul_,
}


def check_operation(operation: int, dtype: torch.dtype) -> None:
    """Raise OperationError if an operation is not defined for a dtype.

    >>> check_operation(MAX, torch.complex64)
    Traceback (most recent call last):
    rueda.hvd.common.exceptions.OperationError: Max: expected a type with an order, got torch.complex64; ...
    """
    if dtype.is_complex and operation not in (SUM, AVERAGE):
        raise OperationError(f"{OPERATIONS[operation]}: expected a type with an order, got {dtype}; reduce its parts")
    if dtype == torch.bool and operation == AVERAGE:
        raise OperationError("Average: expected numbers, got torch.bool; use Max for any rank, Min for all, or convert")


def communication_dtype(dtype: torch.dtype, operation: int) -> torch.dtype:
    """Return the dtype in which a process group reduces a tensor.

    >>> communication_dtype(torch.int8, AVERAGE), communication_dtype(torch.int8, SUM)
    (torch.int32, torch.int8)
    """
    if dtype == torch.bool:
        return torch.uint8
    if operation == ADASUM and dtype in _HALF:
        return torch.float32
    if operation == AVERAGE and dtype in _SMALL:
        return torch.int32
    return _WIDER.get(dtype, dtype)


def communication_operation(dtype: torch.dtype, operation: int) -> int:
    """Return the operation of the process group: Sum for an average, Max or Min for booleans.

    >>> communication_operation(torch.bool, SUM) == MAX, communication_operation(torch.float32, AVERAGE) == SUM
    (True, True)
    """
    if dtype == torch.bool:
        return MAX if operation in (SUM, MAX) else MIN
    return SUM if operation == AVERAGE else operation


def combine(parts: list[Tensor], operation: int, sizes: list[int]) -> Tensor:
    """Reduce flat tensors locally, in rank order, so that every rank computes the same bits.

    Args:
        parts: the tensors of the ranks that contribute; the first may be overwritten.
        operation: the operation; for Average the result is the sum, which :func:`finish` divides.
        sizes: the lengths of the tensors that each part consists of, since Adasum treats each separately.

    >>> combine([torch.tensor([100, 1], dtype=torch.int8), torch.tensor([28, 2], dtype=torch.int8)], MAX, [2])
    tensor([100,   2], dtype=torch.int8)
    """
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in _HALF else communication_dtype(dtype, operation)
    if wide != dtype:
        parts = [part.to(wide) for part in parts]
    if operation == ADASUM:
        return adasum.combine(parts, sizes)
    reduce_into = _IN_PLACE[communication_operation(dtype, operation)]
    total = parts[0]
    for part in parts[1:]:
        reduce_into(total, part)
    return total


def scale(tensor: Tensor, factor: float) -> Tensor:
    """Multiply a tensor in place; integers are rounded towards zero.

    >>> scale(torch.tensor([3, -3]), 0.5), scale(torch.tensor([1.0]), 0.5)
    (tensor([ 1, -1]), tensor([0.5000]))
    """
    if factor == 1.0:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.mul_(factor)
    return tensor.copy_(tensor.double().mul_(factor).trunc_())


def finish(tensor: Tensor, operation: int, num_ranks: int, postscale: float) -> Tensor:
    """Divide a sum by the number of ranks if the operation is Average, and apply the postscale factor, in place.

    >>> finish(torch.tensor([7, -7]), AVERAGE, 2, 1.0), finish(torch.tensor([6.0]), AVERAGE, 3, 0.5)
    (tensor([ 3, -3]), tensor([1.]))
    """
    if operation != AVERAGE:
        return scale(tensor, postscale)
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.mul_(postscale / num_ranks) if postscale != 1.0 else tensor.div_(num_ranks)
    tensor.div_(num_ranks, rounding_mode="trunc")
    return scale(tensor, postscale)
