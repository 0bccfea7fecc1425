"""Reductions of the ranks' parts with torch's kernels, in rank order, so that all ranks compute the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)
_COMPLEX = (torch.complex64, torch.complex128)
DTYPES = frozenset({
    torch.float32, torch.float64, *_HALF, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
    *_COMPLEX,
})  # fmt: skip
"""what can be reduced; everything can be copied"""

PIECE_ELEMENTS = 1 << 16
"""elements that stay in the cache from one kernel to the next"""

_INTO: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "sum": lambda a, b, out: torch.add(a, b, out=out),
    "min": lambda a, b, out: torch.minimum(a, b, out=out),
    "max": lambda a, b, out: torch.maximum(a, b, out=out),
    "product": lambda a, b, out: torch.mul(a, b, out=out),
}


def can_reduce(dtype: torch.dtype, operation: str) -> bool:
    """Return whether an operation of a dtype is known here.

    >>> can_reduce(torch.bfloat16, "max"), can_reduce(torch.complex64, "max"), can_reduce(torch.uint16, "sum")
    (True, False, False)
    """
    return dtype in DTYPES and (dtype not in _COMPLEX or operation in ("sum", "product"))


def reduce_into(out: Tensor, parts: Sequence[Tensor], operation: str, divisor: float | None = None) -> None:
    """Reduce tensors of one shape into ``out``: the first with the second, the result with the third, and so on.

    Args:
        out: the result; it may be the first part itself, or the second of two.
        parts: the tensors of all ranks, in rank order.
        operation: ``sum``, ``min``, ``max`` or ``product``.
        divisor: what the result is divided by; float16 and bfloat16 are rounded only afterwards.

    >>> out = torch.empty(2)
    >>> reduce_into(out, [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])], "sum", 2.0)
    >>> out
    tensor([4.5000, 6.0000])
    """
    into = _INTO[operation]
    first, second, *rest = parts
    if out.dtype in _HALF and (rest or divisor is not None):
        total = first.float()
        for part in parts[1:]:
            into(total, part.float(), total)
        if divisor is not None:
            total.div_(divisor)
        out.copy_(total)
        return
    into(first, second, out)
    for part in rest:
        into(out, part, out)
    if divisor is not None:
        out.div_(divisor)


def sum_lists(targets: Sequence[Tensor], parts: Sequence[Sequence[Tensor]], divisor: float | None = None) -> None:
    """Sum lists of tensors into ``targets``, each element as :func:`reduce_into` does.

    Large tensors are summed one at a time, in pieces that stay in the cache for the division, and small ones together.

    Args:
        targets: the results, contiguous or not, of any dtype.
        parts: for each rank a list of contiguous tensors with the shapes of the targets.
        divisor: what the sums are divided by.

    >>> target = torch.empty(2)
    >>> sum_lists([target], [[torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])]], 2.0)
    >>> target
    tensor([2., 3.])
    """
    small = []
    for index, target in enumerate(targets):
        like = parts[0][index]
        if like.numel() < PIECE_ELEMENTS or like.dtype != target.dtype or not target.is_contiguous():
            small.append(index)
            continue
        flat = [target.view(-1), *(part[index].view(-1) for part in parts)]
        for out, *pieces in zip(*(tensor.split(PIECE_ELEMENTS) for tensor in flat), strict=True):  # type: ignore[no-untyped-call]
            reduce_into(out, pieces, "sum", divisor)
    if small:
        total = [torch.empty_like(parts[0][index]) for index in small]
        if parts[0][small[0]].dtype in _HALF:
            for index, out in zip(small, total, strict=True):
                reduce_into(out, [part[index] for part in parts], "sum", divisor)
        else:
            total = list(torch._foreach_add([parts[0][i] for i in small], [parts[1][i] for i in small]))
            for part in parts[2:]:
                torch._foreach_add_(total, [part[i] for i in small])
            if divisor is not None:
                torch._foreach_div_(total, divisor)
        torch._foreach_copy_([targets[index] for index in small], total)
