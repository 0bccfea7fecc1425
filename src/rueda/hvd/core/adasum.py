"""Adasum: a sum of gradients that adds what is orthogonal and averages what is parallel.

Maleki et al., *Scaling distributed training with adaptive summation*, MLSys 2021. For two gradients

    adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b

and for more of them over a binary tree: ranks 0 and 1, 2 and 3, ..., then the pairs of pairs. The paper's recursive
vector halving is a way to compute just that with half vectors; here the ranks exchange whole ones, which is the same
number up to rounding and takes log2(N) exchanges.

Any number of ranks: with m the largest power of two below N, the ranks m, m+1, ... first give their gradients to the
ranks 0, 1, ..., which combine them with their own (so three ranks compute adasum(adasum(g0, g2), g1)); then m ranks go
on as above and hand the result back. A rank that has nothing to give (zeros) changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def pair(a: Tensor, b: Tensor, sizes: list[int] | None = None) -> Tensor:
    """Combine two gradients; with ``sizes``, each of the tensors that lie one after the other by itself.

    >>> pair(torch.tensor([2.0, 0.0]), torch.tensor([0.0, 3.0]))   # orthogonal: the sum
    tensor([2., 3.])
    >>> pair(torch.tensor([2.0, 2.0]), torch.tensor([2.0, 2.0]))   # parallel: the average
    tensor([2., 2.])
    """
    if sizes is not None and len(sizes) > 1:
        return torch.cat([pair(x, y) for x, y in zip(a.split(sizes), b.split(sizes), strict=True)])  # type: ignore[no-untyped-call]
    # In float64: squares of large gradients overflow, and the terms nearly cancel.
    x, y = a.reshape(-1).double(), b.reshape(-1).double()
    dot = torch.dot(x, y)
    coefficients = [
        torch.where(square > 0, 1.0 - dot / (2.0 * square), torch.ones_like(dot))
        for square in (torch.dot(x, x), torch.dot(y, y))
    ]
    return (coefficients[0] * x + coefficients[1] * y).to(a.dtype).view(a.shape)


def tree(parts: list[Tensor], sizes: list[int] | None = None) -> Tensor:
    """Combine the gradients of all ranks in one place, in the order in which the ranks would.

    >>> tree([torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])])
    tensor([1., 1., 1.])
    """
    power = _power_of_two(len(parts))
    values = parts[:power]
    for extra, part in enumerate(parts[power:]):
        values[extra] = pair(values[extra], part, sizes)
    while len(values) > 1:
        values = [pair(values[i], values[i + 1], sizes) for i in range(0, len(values), 2)]
    return values[0]


def between(group: Any, rank: int, num_ranks: int, tensor: Tensor, sizes: list[int] | None = None) -> Tensor:
    """Combine over a process group; the result has the same bits on all ranks.

    Args:
        group: sends and receives flat tensors.
        rank: this worker's number within the group.
        num_ranks: how many there are.
        tensor: this worker's gradients, flat.
        sizes: the lengths of the tensors in it.
    """
    power = _power_of_two(num_ranks)
    if rank >= power:
        group.send([tensor], rank - power, 0).wait()
        return _receive(group, tensor, rank - power)
    if rank + power < num_ranks:
        tensor = pair(tensor, _receive(group, tensor, rank + power), sizes)
    distance = 1
    while distance < power:
        partner = rank ^ distance
        sending = group.send([tensor], partner, 0)
        other = _receive(group, tensor, partner)
        sending.wait()
        tensor = pair(tensor, other, sizes) if rank < partner else pair(other, tensor, sizes)
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
