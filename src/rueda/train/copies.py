"""Copies of a training's state in the memory of its workers, from which checkpoints are written and recalled.

A checkpoint is written while the training goes on, so it is written from a copy. The copy is made at the step, into
memory of the host that is kept for the next ones: one pass over the state, and no page fault after the first. On a GPU
the memory is pinned.

In an elastic job (:mod:`rueda.train.generations`) such a copy is a *commit*: what the workers that are left go on from,
and what a fresh worker receives.

Where the workers are on several hosts, two ranks keep such copies: rank 0, which writes the file, and the first rank of
the next host. So a host that is lost, rank 0's included, costs no read from a disk or a storage that may be lost with
it or far away: :func:`recall` broadcasts the newest copy that any rank has. The neighbour needs no message for it.
Data-parallel workers have the same parameters, the same optimizer state and the same position in the data; what each
rank has of its own (running statistics, random states) is gathered for the checkpoint anyway, and all ranks receive it.
On one host there is no such neighbour: it would be lost with the others, it would slow the copy down, and the file is
still in the memory of the host after the process that wrote it is gone. In an elastic job, whose commits are not
written, rank 1 of the same host keeps them, too: any one process and any one host may be lost.

Several workers keep two copies in turn: the next one is made while the one before may still be written, and if a worker
is lost when some ranks have made a copy and others have not, the older one is whole on all of them. A worker alone
keeps one.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rueda.train.checkpoint import parse_checkpoint
from rueda.train.stream_copy import stream_copy
from rueda.world import World
from rueda.world.device import wait_for

_PIECE = 2**20
"""numbers that are copied and added up before the next ones"""


class StateCopy(NamedTuple):
    """A copy of the state."""

    step: int
    """the updates made when it was copied"""
    contents: dict[str, Any]
    """what the checkpoint of this step holds, in the memory of the host"""
    is_finite: bool
    """whether all numbers were found to be finite; False if some are not, or if they were not tested, as on a GPU"""


class StateCopies:
    """The newest copies that this rank keeps.

    >>> copies, weight = StateCopies(torch.device("cpu"), 2), torch.zeros(1)
    >>> for step in (1, 2, 3):
    ...     _ = copies.take(step, {"weight": weight.fill_(step)})
    >>> [(one.step, one.contents["weight"].item()) for one in copies.kept()]
    [(3, 3.0), (2, 2.0)]

    Args:
        device: the device of the state.
        num_kept: how many copies are kept.
    """

    def __init__(self, device: torch.device, num_kept: int) -> None:
        self._memory = [_HostMemory(device) for _ in range(num_kept)]
        self._copies: list[StateCopy | None] = [None] * num_kept
        self._last = 0

    def take(self, step: int, contents: Mapping[str, Any]) -> StateCopy:
        """Copy the state over the copy that was made first; the last one is not touched, unless one is kept only."""
        self._last = (self._last + 1) % len(self._copies)
        self._copies[self._last] = None  # until the new one is whole
        memory = self._memory[self._last]
        taken = StateCopy(step, memory.copy(dict(contents)), memory.is_finite)
        self._copies[self._last] = taken
        return taken

    def kept(self) -> list[StateCopy]:
        """Return the copies, the last one first."""
        in_turn = [self._copies[(self._last - back) % len(self._copies)] for back in range(len(self._copies))]
        return [one for one in in_turn if one is not None]

    @property
    def next(self) -> StateCopy | None:
        """The copy that the next one takes the place of, if there is one."""
        return self._copies[(self._last + 1) % len(self._copies)]

    def forget(self) -> None:
        """Drop all copies; their memory is kept for later ones."""
        self._copies = [None] * len(self._copies)

    def forget_after(self, step: int) -> None:
        """Drop the copies of later steps, since the training has gone back."""
        self._copies = [None if one is not None and one.step > step else one for one in self._copies]


class _HostMemory:
    """Memory of the host that holds the tensors of one copy, and is used again for the next."""

    def __init__(self, device: torch.device) -> None:
        self.is_finite = False
        """whether all numbers of the last copy are known to be finite"""
        self._device = device
        self._buffers: list[Tensor] = []
        self._num_used = 0
        self._copied: dict[tuple[Any, ...], Tensor] = {}

    def copy(self, contents: dict[str, Any]) -> dict[str, Any]:
        """Copy nested dictionaries, lists and tuples with all tensors in them; tied tensors stay tied."""
        self._num_used, self._copied = 0, {}
        self.is_finite = self._device.type == "cpu"
        copied: dict[str, Any] = self._copy(contents)
        del self._buffers[self._num_used :]
        self._copied = {}
        wait_for(self._device)
        return copied

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._copy_tensor(value.detach())
        if isinstance(value, dict):
            new = copy.copy(value)  # of the same kind, with the versions of modules that a state dict has
            for key, item in value.items():
                new[key] = self._copy(item)
            return new
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self._copy(item) for item in value)
        return value if isinstance(value, (int, float, str, bytes, type(None))) else copy.deepcopy(value)

    def _copy_tensor(self, tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided:
            return tensor.cpu().clone()
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in self._copied:
            return self._copied[place]
        buffer = self._buffers[self._num_used] if self._num_used < len(self._buffers) else None
        if buffer is None or (buffer.dtype, buffer.shape, buffer.stride()) != place[1:]:
            pinned = self._device.type == "cuda" and tensor.is_cuda
            buffer = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=pinned)
            self._buffers[self._num_used : self._num_used + 1] = [buffer]
        self._num_used += 1
        self._copied[place] = buffer
        if self._device.type == "cpu" and tensor.is_floating_point() and tensor.dtype.itemsize >= 4:
            self._copy_and_test(buffer, tensor)
        else:
            self.is_finite &= not tensor.is_floating_point()
            buffer.copy_(tensor, non_blocking=True)
        return buffer

    def _copy_and_test(self, buffer: Tensor, tensor: Tensor) -> None:
        """Copy a tensor, and see whether it is finite.

        Without a kernel it is copied piece by piece, and each piece is added up while it is in the cache: a sum with a
        NaN or an infinity in it is not finite. It takes 2 ms for 100 MB here, and 6 if the state is read once more.
        """
        finite = stream_copy(buffer, tensor)
        if finite is not None:
            self.is_finite &= finite
            return
        pieces = [(buffer, tensor)]
        if tensor.numel() > _PIECE and (tensor.is_contiguous() and buffer.is_contiguous()):
            pieces = list(zip(torch.split(buffer.view(-1), _PIECE), torch.split(tensor.view(-1), _PIECE), strict=True))
        for into, piece in pieces:
            into.copy_(piece)
            self.is_finite = self.is_finite and math.isfinite(into.sum())


def holders_of_copies(world: World, *, elastic: bool = False) -> set[int]:
    """Return the ranks that keep copies: rank 0 and the first of the next host, if there is one.

    Every worker must call it, since only rank 0 knows how many workers its host has.

    Args:
        world: the workers.
        elastic: also a second rank of rank 0's host, so that the copies outlive rank 0.
    """
    num_there: int = world.broadcast_object(world.local_size)
    return {0, *([num_there] if num_there < world.size else []), *([1] if elastic and num_there > 1 else [])}


def recall(world: World, copies: StateCopies, *, later_than: int = -1) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest state that any rank has in its memory, on all workers, which must all call it.

    The world may be another one than that in which the copies were made: workers that are left, and new ones.

    Args:
        world: the workers.
        copies: those of this rank.
        later_than: a step; copies of this or an earlier one do not count. It must be the same on all workers.

    Returns:
        A name for messages and the contents, as :func:`rueda.train.resume.read_for_all` returns them; None if no rank
        has such a copy.
    """
    steps = world.all_gather_object([one.step for one in copies.kept()])
    newest = max((step for of_rank in steps for step in of_rank), default=None)
    if newest is None or newest <= later_than:
        return None
    holder = next(rank for rank, of_rank in enumerate(steps) if newest in of_rank)
    content = b""
    if world.rank == holder:
        buffer = io.BytesIO()
        torch.save(next(one.contents for one in copies.kept() if one.step == newest), buffer)
        content = buffer.getvalue()
    name = Path(f"the copy of update {newest:,} in the memory of rank {holder}")
    return name, parse_checkpoint(name, world.broadcast_object(content, holder))
