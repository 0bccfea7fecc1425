"""Norms of many tensors: Python numbers for the host path, one vector for the lanes, all-reduced over shards.

Sums of millions of squares in float32 are inaccurate (``torch.linalg.vector_norm`` of 2.4 million float32 numbers on a
CPU is off by 8e-5, of 50 million by 8e-3), so the CPU sums within blocks in float32 and over blocks in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BLOCK = 1 << 18


def square(tensor: Tensor) -> float:
    """Return |t|² of a contiguous CPU tensor as a Python number.

    >>> square(torch.tensor([3.0, 4.0]))
    25.0
    """
    flat = tensor.ravel()  # a view, cheaper than view(-1)
    if flat.numel() <= BLOCK:
        return flat.dot(flat).item()
    return math.fsum(block.dot(block).item() for block in torch.split(flat, BLOCK))


def norms(*lists: Sequence[Tensor], shards: Sequence[ProcessGroup] = (), also: Sequence[Tensor] = ()) -> Tensor:
    """Return |t| of every tensor, with a row for each list, over the shards in the process groups ``shards``.

    The result is float64 on the CPU and for float64 tensors, otherwise float32. There is one all-reduce for all
    tensors. The numbers of ``also``, scalars on the device, become one more row: one kernel collects them all.

    >>> norms([torch.ones(4), torch.ones(9)], [torch.zeros(4), torch.ones(1)])
    tensor([[2., 3.],
            [0., 1.]], dtype=torch.float64)
    """
    first = lists[0][0]
    wide = first.dtype == torch.float64 or first.device.type == "cpu"
    dtype = torch.float64 if wide else torch.float32
    found = torch._foreach_norm([tensor for tensors in lists for tensor in tensors], 2, dtype=dtype)
    result = torch.stack([*found, *also]).view(-1, len(lists[0]))
    if shards:
        squares = result[: len(lists)].square()
        for group in shards:
            torch.distributed.all_reduce(squares, group=group)
        result[: len(lists)] = squares.sqrt()
    return result
