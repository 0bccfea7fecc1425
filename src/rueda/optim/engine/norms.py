"""Norms of many tensors: host numbers for the CPU path, one vector for the lanes, reduced across shards.

float32 sums of millions of squares drift (``torch.linalg.vector_norm`` of 2.4 million float32 numbers on a
CPU is off by 8e-5, of 50 million by 8e-3), so the CPU sums blocks in float32 and the blocks in float64.
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
    """Return |t|² of a contiguous CPU tensor as a host number.

    >>> square(torch.tensor([3.0, 4.0]))
    25.0
    """
    flat = tensor.ravel()  # a view, cheaper than view(-1)
    if flat.numel() <= BLOCK:
        return flat.dot(flat).item()
    return math.fsum(block.dot(block).item() for block in torch.split(flat, BLOCK))


def squares(*lists: Sequence[Tensor], shards: Sequence[ProcessGroup] = ()) -> Tensor:
    """Return |t|² of every tensor, a row for each list; summed over ``shards`` where tensors are only local parts.

    At least float32 whatever the tensors are; float64 on the CPU and for float64 tensors. One reduction for all.

    >>> squares([torch.ones(4), torch.ones(9)], [torch.zeros(4), torch.ones(1)])
    tensor([[4., 9.],
            [0., 1.]], dtype=torch.float64)
    """
    first = lists[0][0]
    wide = first.dtype == torch.float64 or first.device.type == "cpu"
    dtype = torch.float64 if wide else torch.float32
    rows = [torch.stack(torch._foreach_norm(list(tensors), 2, dtype=dtype)) for tensors in lists]
    totals = torch.stack(rows).square()
    for group in shards:
        torch.distributed.all_reduce(totals, group=group)
    return totals
