"""Finds workers whose parameters are no longer the same, and which of them is wrong.

All workers start from the same parameters and make the same updates, so their parameters stay equal in every bit.
Faulty hardware (Dixit et al. 2021, *Silent Data Corruptions at Scale*, 2102.11245), a parameter that a script changes
on one rank, or an update that depends on the rank makes them differ, and the averaged gradients then belong to no model
at all.

Each parameter has a checksum: the sum of its bits, read as whole numbers of 64 bits modulo 2⁶⁴. One pass at the speed
of the memory computes it, its order does not matter, and a flipped bit always changes it. The workers exchange one
number, the weighted sum of these; only if they differ, those of all parameters. A rank that differs from what more than
half of the workers have is wrong. Between two workers, or where there is no majority, nobody can tell.

What this cannot find: a fault that all workers share, such as a wrong number in the averaged gradient, and faults of
the state that each worker has of its own (running statistics of batch norm).
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rueda.world import World

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = 8
"""bytes of the numbers that are added up"""


class Drift(NamedTuple):
    """What was found on workers that differ."""

    source: int | None
    """a rank of the majority, from which the others can be repaired; None if there is no majority"""
    ranks: tuple[int, ...]
    """the ranks that are wrong; without a majority, all that differ"""
    hosts: tuple[str, ...]
    """the machines of these ranks"""
    names: tuple[str, ...]
    """the parameters that differ"""
    text: str
    """which ranks and parameters differ, by how much, and what may have caused it"""


def checksum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bits, read as whole numbers: equal tensors have equal sums, in any order.

    >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])
    >>> bool(checksum(one) == checksum(one.clone())), bool(checksum(one) == checksum(other))
    (True, False)
    """
    numbers = _bytes(tensor)
    whole = numbers.numel() // _WORD * _WORD
    total = numbers[:whole].view(torch.int64).sum()
    return total if whole == numbers.numel() else total + numbers[whole:].sum(dtype=torch.int64)


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor in the order of its memory, without a copy where that is dense."""
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    is_dense = values.is_contiguous() or (values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last))
    if not is_dense or values.storage_offset() * values.itemsize % _WORD:
        values = values.clone(memory_format=torch.contiguous_format)
    return values.as_strided((values.numel(),), (1,)).view(torch.uint8)


def compared_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are compared, by name: all but sparse and empty ones."""
    return {name: one for name, one in model.named_parameters() if one.layout == torch.strided and one.numel()}


def checksums(parameters: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the checksums of all parameters, [P]."""
    if not parameters:
        return torch.zeros(0, dtype=torch.int64, device=device)
    return torch.stack([checksum(one) for one in parameters])


def combined(sums: Tensor) -> Tensor:
    """Return one number for all checksums, each times an odd number of its own, so that none can stand for another."""
    return (sums * (2 * torch.arange(len(sums), device=sums.device) + 1)).sum()


def describe_drift(world: World, parameters: dict[str, Tensor], sums: Tensor) -> Drift:
    """Find out which workers and parameters differ, after their combined checksums did; every worker must call it.

    Args:
        world: the workers.
        parameters: those of :func:`compared_parameters`.
        sums: their :func:`checksums`.
    """
    of_workers = torch.stack(world.all_gather(sums)).cpu()  # [workers, parameters]
    hosts = world.all_gather_object(socket.gethostname())
    groups = Counter(tuple(row) for row in of_workers.tolist())
    (most, count), *_ = groups.most_common(1)
    rows = [tuple(row) for row in of_workers.tolist()]
    has_majority = 2 * count > world.size
    source = rows.index(most) if has_majority else None
    reference = rows.index(most) if has_majority else 0
    ranks = tuple(rank for rank, row in enumerate(rows) if row != rows[reference])
    differs = (of_workers != of_workers[reference]).any(0).tolist()
    names = tuple(name for name, one in zip(parameters, differs, strict=True) if one)
    named = ranks if has_majority else tuple(range(world.size)) if world.size == 2 else (reference, *ranks)
    amount = _amount(world, parameters[names[0]], reference)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    whom = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in ranks)
    of = "the other workers'" if has_majority else f"that of rank {reference} ({hosts[reference]})"
    verb = "differs" if len(names) == 1 and len(ranks) == 1 else "differ"
    text = f"{names[0]}{more} of {whom} {verb} from {of}, {amount}"
    return Drift(source, named, tuple(hosts[rank] for rank in named), names, text)


def _amount(world: World, parameter: Tensor, reference: int) -> str:
    """Say by how much a parameter differs from that of another rank, and what may have caused it."""
    own = parameter.detach()
    other = world.broadcast(own, reference)
    bits = _INTEGERS[own.element_size() // (2 if own.is_complex() else 1)]
    mine, theirs = (
        (torch.view_as_real(one) if one.is_complex() else one).contiguous().view(bits).flatten() for one in (own, other)
    )
    changed = (mine != theirs).nonzero().flatten()
    flipped = 0
    if len(changed) == 1:
        at = int(changed)
        flipped = bin((int(mine[at]) ^ int(theirs[at])) & (256 ** mine.element_size() - 1)).count("1")
    apart = float((own - other).abs().double().max())
    found = world.all_gather_object((len(changed), flipped, apart))
    count, flipped, apart = max(found)  # of the rank with most values that differ
    by = f"by up to {apart:.3g} in {count:,} of {mine.numel():,} values"
    if (count, flipped) == (1, 1):
        return f"{by}, there in one bit, as after a fault of the memory or the processor"
    return f"{by}; look for code that depends on the rank, or that changes parameters outside of the update"
