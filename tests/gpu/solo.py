"""One rank of many, alone: a process group in which every other rank is taken to hold what this one holds.

So a sum is a multiplication by the number of ranks, and an all-gather a repetition. What rank 0 broadcasts is kept on a
tape; a group that is another rank hears it from there, in the same order. That shows what one of 1,024 ranks allocates,
sends and waits for, without the other 1,023::

    tape: Tape = []
    with solo(rank=0, size=1024, tape=tape) as group:
        ...
    with solo(rank=1023, size=1024, tape=tape) as group:
        ...
    group.num_bytes["allreduce"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gpu.nccl import Finished

Tape = list[list[Tensor]]


class Solo(dist.ProcessGroup):
    """A process group of which only this rank exists."""

    def __init__(self, rank: int, size: int, tape: Tape) -> None:
        super().__init__(rank, size)
        self.num_calls: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        """bytes that this rank gave to each kind of collective"""
        self._tape = tape
        self._next = 0

    def getBackendName(self) -> str:
        return "solo"

    def _count(self, what: str, tensors: list[Tensor]) -> None:
        self.num_calls[what] += 1
        self.num_bytes[what] += sum(tensor.nbytes for tensor in tensors)

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Finished:
        self._count("allreduce", tensors)
        operation = dist.ReduceOp.SUM if options is None else options.reduceOp
        for tensor in tensors:
            if operation == dist.ReduceOp.SUM:
                tensor.mul_(self.size())
            elif operation == dist.ReduceOp.PRODUCT:
                tensor.pow_(self.size())
        return Finished(tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], options: Any = None) -> Finished:
        return self.allreduce(tensors, options)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Finished:
        self._count("broadcast", tensors)
        if options.rootRank == self.rank():
            self._tape.append([tensor.detach().clone() for tensor in tensors])
        else:
            heard = self._tape[self._next]
            self._next += 1
            for tensor, value in zip(tensors, heard, strict=True):
                assert tensor.shape == value.shape and tensor.dtype == value.dtype, "the ranks are not in step"
                tensor.detach().copy_(value)
        return Finished(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None) -> Finished:
        self._count("allgather", inputs)
        for parts, given in zip(outputs, inputs, strict=True):
            for part in parts:
                part.copy_(given)
        return Finished([part for parts in outputs for part in parts])

    def _allgather_base(self, output: Tensor, given: Tensor, options: Any = None) -> Finished:
        self._count("allgather", [given])
        output.view(self.size(), -1).copy_(given.reshape(1, -1).expand(self.size(), -1))
        return Finished([output])

    def _reduce_scatter_base(self, output: Tensor, given: Tensor, options: Any = None) -> Finished:
        self._count("reduce_scatter", [given])
        output.view(-1).copy_(given.reshape(self.size(), -1)[self.rank()]).mul_(self.size())
        return Finished([output])

    def barrier(self, opts: Any = None) -> Finished:
        self._count("barrier", [])
        return Finished([])


@contextmanager
def solo(*, rank: int, size: int, tape: Tape) -> Iterator[Solo]:
    """Be one rank of many inside the block: torch's default process group is a :class:`Solo`."""
    made: list[Solo] = []

    def create(store: Any, rank: int, size: int, timeout: Any) -> Solo:
        made.append(Solo(rank, size, tape))
        return made[-1]

    if "SOLO" not in dist.Backend._plugins:
        dist.Backend.register_backend("solo", lambda *args: _create[0](*args), devices=["cpu", "cuda"])
    _create[:] = [create]
    dist.init_process_group("solo", store=dist.HashStore(), rank=rank, world_size=size)
    try:
        yield made[0]
    finally:
        dist.destroy_process_group()


_create: list[Any] = []
