"""Adasum: a sum of gradients that adds orthogonal gradients and averages parallel ones.

Maleki et al., *Scaling distributed training with adaptive summation*, MLSys 2021. For two gradients

    adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b

and for more gradients along a binary tree: ranks 0 and 1, 2 and 3, ..., then the pairs of pairs. The recursive vector
halving of the paper computes the same with half vectors; here the ranks exchange whole vectors, which gives the same
result up to rounding and takes log2(N) exchanges.

The number of ranks N need not be a power of two: with m the largest power of two that is at most N, the ranks m, m+1,
... first send their gradients to the ranks 0, 1, ..., which combine them with their own (three ranks compute
adasum(adasum(g0, g2), g1)). Then the first m ranks continue as above and send the result back. A rank that contributes
zeros does not change the result.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor


def combine_pair(a: Tensor, b: Tensor, sizes: list[int] | None = None) -> Tensor:
    """Combine two gradients; with ``sizes``, combine each of the tensors that they consist of separately.

    >>> combine_pair(torch.tensor([2.0, 0.0]), torch.tensor([0.0, 3.0]))   # orthogonal: the sum
    tensor([2., 3.])
    >>> combine_pair(torch.tensor([2.0, 2.0]), torch.tensor([2.0, 2.0]))   # parallel: the average
    tensor([2., 2.])
    """
    if sizes is not None and len(sizes) > 1:
        pairs = zip(a.split(sizes), b.split(sizes), strict=True)  # type: ignore[no-untyped-call]
        return torch.cat([combine_pair(x, y) for x, y in pairs])
    # In float64, because squares of large gradients overflow and the terms nearly cancel.
    x, y = a.reshape(-1).double(), b.reshape(-1).double()
    dot = torch.dot(x, y)
    coefficients = [
        torch.where(square > 0, 1.0 - dot / (2.0 * square), torch.ones_like(dot))
        for square in (torch.dot(x, x), torch.dot(y, y))
    ]
    return (coefficients[0] * x + coefficients[1] * y).to(a.dtype).view(a.shape)


def combine(parts: list[Tensor], sizes: list[int] | None = None) -> Tensor:
    """Combine the gradients of all ranks locally, in the same order as :func:`allreduce`.

    >>> combine([torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])])
    tensor([1., 1., 1.])
    """
    power = _power_of_two(len(parts))
    values = parts[:power]
    for index, part in enumerate(parts[power:]):
        values[index] = combine_pair(values[index], part, sizes)
    while len(values) > 1:
        values = [combine_pair(values[i], values[i + 1], sizes) for i in range(0, len(values), 2)]
    return values[0]


def allreduce(group: Any, rank: int, num_ranks: int, tensor: Tensor, sizes: list[int]) -> Tensor:
    """Combine the gradients of all ranks over a process group; all ranks get the same bits.

    Args:
        group: the process group, which sends and receives flat tensors.
        rank: the rank of this worker in the group.
        num_ranks: the number of ranks in the group.
        tensor: the flat gradients of this worker.
        sizes: the lengths of the tensors that ``tensor`` consists of.
    """
    power = _power_of_two(num_ranks)
    if rank >= power:
        group.send([tensor], rank - power, 0).wait()
        return _receive(group, tensor, rank - power)
    if rank + power < num_ranks:
        tensor = combine_pair(tensor, _receive(group, tensor, rank + power), sizes)
    distance = 1
    while distance < power:
        partner = rank ^ distance
        other = torch.empty_like(tensor)
        # A process group that runs its operations in order, such as NCCL's, would deadlock if both ranks sent first.
        send, receive = partial(group.send, [tensor], partner, 0), partial(group.recv, [other], partner, 0)
        for work in [start() for start in ((send, receive) if rank < partner else (receive, send))]:
            work.wait()
        tensor = combine_pair(tensor, other, sizes) if rank < partner else combine_pair(other, tensor, sizes)
        distance *= 2
    if rank + power < num_ranks:
        group.send([tensor], rank + power, 0).wait()
    return tensor


def _receive(group: Any, like: Tensor, source: int) -> Tensor:
    other = torch.empty_like(like)
    group.recv([other], source, 0).wait()
    return other


def _power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)
