"""The collectives, chunk by chunk: what a rank puts into its slot, and what it does with the slots of all.

A chunk is *filled* by its rank before that rank posts it. When all have posted it, it is *drained*: what the slots hold
goes into the tensor. An operation with ``combines`` has a step between the two: each rank reduces a part of the chunk
into the first slot, and the chunk is drained when all parts are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rueda.world.shared_memory.reductions import PIECE_ELEMENTS, reduce_into


def _all_dtypes() -> set[torch.dtype]:
    return {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


COMBINE_BYTES = 32768
"""chunks of three and more ranks that are smaller are reduced by each rank itself: that saves waiting once"""


_KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_reduce in place")
_OPERATIONS = ("sum", "min", "max", "product")
_NUMBERS = {dtype: number for number, dtype in enumerate(sorted(_all_dtypes(), key=str))}


class Place(NamedTuple):
    """The place of a rank in its group."""

    rank: int
    size: int


class Operation:
    """A collective on one rank.

    Args:
        place: the place of this rank.
        num_elements: the elements that pass through a slot.
        dtype: their dtype.
        chunk_elements: how many of them a chunk holds at most.
        source: the rank whose chunks are awaited; None: all.
        operation: ``sum``, ``min``, ``max`` or ``product`` of a reduction.
    """

    kind = ""

    def __init__(
        self,
        place: Place,
        num_elements: int,
        dtype: torch.dtype,
        chunk_elements: int,
        source: int | None = None,
        operation: str = "sum",
    ) -> None:
        self.place = place
        self.dtype = dtype
        self.source = source
        self.combines = False
        self.in_place = False  # whether the ranks combine memory of their own, and not what lies in the slots
        self.number = 0  # of the operation in its group, from 1
        self.first = 0  # the number of its first chunk among all chunks of the group
        self._num_elements = num_elements
        self._chunk_elements = chunk_elements
        variant = _OPERATIONS.index(operation) if source is None else source  # below 128, the most ranks of a group
        self.what = ((num_elements * 64 + _NUMBERS[dtype]) * 8 + _KINDS.index(self.kind)) * 128 + variant
        """a number that is the same on all ranks that call the same collective: of one size, dtype and operation, or
        from one source"""
        self.num_chunks = max(1, -(-num_elements // chunk_elements))  # one also of an empty tensor: all ranks meet

    def __str__(self) -> str:
        """Describe it as the flight recorder of torch describes its collectives."""
        return f"{self.kind} of {str(self.dtype).removeprefix('torch.')}[{self._num_elements}]"

    def span(self, index: int) -> tuple[int, int]:
        """Return where a chunk begins and ends."""
        start = index * self._chunk_elements
        return start, min(self._num_elements, start + self._chunk_elements)

    def fill(self, index: int, slot: Tensor, unneeded: tuple[int, int] = (0, 0)) -> None:
        """Write a chunk into the slot of this rank, perhaps except for a part that no other rank reads."""

    def combine(self, index: int, slots: Sequence[Tensor]) -> None:
        """Reduce this rank's part of a chunk into the first slot."""

    def drain(self, index: int, slots: Sequence[Tensor]) -> None:
        """Take the result of a chunk from the slots."""


class Reduction(Operation):
    """An all-reduce, whose chunks are reduced part by part where ``combines`` is set.

    Args:
        place: the place of this rank.
        num_elements: see :class:`Operation`.
        dtype: see :class:`Operation`.
        chunk_elements: see :class:`Operation`.
        operation: ``sum``, ``min``, ``max`` or ``product``.
        divisor: what the result is divided by.
        finish: changes each part of the result in place, while that is in the cache.
    """

    kind = "all_reduce"

    def __init__(
        self,
        place: Place,
        num_elements: int,
        dtype: torch.dtype,
        chunk_elements: int,
        operation: str,
        divisor: float | None,
        finish: Callable[[Tensor], object],
    ) -> None:
        super().__init__(place, num_elements, dtype, chunk_elements, operation=operation)
        self._operation = operation
        self._divisor = divisor
        self._finish = finish
        self.combines = place.size > 2 and min(chunk_elements, num_elements) * dtype.itemsize >= COMBINE_BYTES

    def combine(self, index: int, slots: Sequence[Tensor]) -> None:
        """Reduce this rank's part of a chunk into the first slot."""
        start, end = self.span(index)
        low, high = part_of(end - start, *self.place)
        if high > low:
            parts = [slot[low:high] for slot in slots]
            self.reduce_whole(parts[0], parts)

    def reduce_whole(self, out: Tensor, parts: Sequence[Tensor]) -> None:
        """Reduce what all ranks together contribute to some elements, and finish it."""
        reduce_into(out, parts, self._operation, self._divisor)
        self._finish(out)

    def own_part(self, index: int, low: int, high: int) -> Tensor | None:
        """Return a part of this rank's chunk, where it need not be in the slot."""
        return None

    def reduce_some(self, out: Tensor, parts: Sequence[Tensor]) -> None:
        """Reduce what some of the ranks contribute to some elements."""
        if len(parts) == 1:
            out.copy_(parts[0])
        else:
            reduce_into(out, parts, self._operation)


class AllReduce(Reduction):
    """Reduces a flat tensor into ``result``, which may be the tensor itself; otherwise see :class:`Reduction`."""

    def __init__(
        self,
        place: Place,
        result: Tensor,
        tensor: Tensor,
        chunk_elements: int,
        operation: str,
        divisor: float | None,
        finish: Callable[[Tensor], object] = lambda part: None,
    ) -> None:
        super().__init__(place, tensor.numel(), tensor.dtype, chunk_elements, operation, divisor, finish)
        self._result = result
        self._tensor = tensor

    def fill(self, index: int, slot: Tensor, unneeded: tuple[int, int] = (0, 0)) -> None:
        """Write a chunk into the slot of this rank."""
        start, end = self.span(index)
        low, high = unneeded
        if high > low:
            if low:
                slot[:low].copy_(self._tensor[start : start + low])
            if high < end - start:
                slot[high : end - start].copy_(self._tensor[start + high : end])
        else:
            slot[: end - start].copy_(self._tensor[start:end])

    def own_part(self, index: int, low: int, high: int) -> Tensor | None:
        """Return a part of this rank's chunk, where it need not be in the slot."""
        start = index * self._chunk_elements
        return self._tensor[start + low : start + high]

    def drain(self, index: int, slots: Sequence[Tensor]) -> None:
        """Take the result of a chunk from the slots."""
        start, end = self.span(index)
        result = self._result[start:end]
        if self.combines:
            result.copy_(slots[0][: end - start])
            return
        parts = [slot[: end - start] for slot in slots]
        if self.place.size == 2:
            parts[self.place.rank] = self._tensor[start:end]  # the slot has a copy of it, but this is in the cache
        self.reduce_whole(result, parts)


class AllReduceInPlace(Operation):
    """Averages or sums flat tensors that all ranks have mapped, each rank its part of all of them.

    A rank reads its part of every rank's tensor and writes the result to all of them. For N bytes it moves 2 N, however
    many ranks there are, where a sum through slots moves 5 N: in, out, and the division in the cache.

    Args:
        place: the place of this rank.
        tensors: the tensors of all ranks, of one length and dtype.
        divisor: what the sum is divided by.
    """

    kind = "all_reduce in place"

    def __init__(self, place: Place, tensors: Sequence[Tensor], divisor: float | None) -> None:
        num_elements = tensors[0].numel()
        super().__init__(place, num_elements, tensors[0].dtype, max(1, num_elements))
        self.combines = self.in_place = True
        self._tensors = tensors
        self._divisor = divisor

    def combine(self, index: int, slots: Sequence[Tensor]) -> None:
        """Reduce this rank's part of the tensors into all of them, in pieces that stay in the cache."""
        low, high = part_of(self._num_elements, *self.place)
        for start in range(low, high, PIECE_ELEMENTS):
            first, *others = pieces = [tensor[start : min(high, start + PIECE_ELEMENTS)] for tensor in self._tensors]
            reduce_into(first, pieces, "sum", self._divisor)
            for other in others:
                other.copy_(first)


class Fusion(NamedTuple):
    """What is reduced directly in the slots, without a tensor of its own: three functions of a flat tensor.

    ``fill`` writes what this rank contributes; ``finish`` divides or scales a part of the sum, in place; ``take``
    copies the result out, and keeps no view of it.
    """

    fill: Callable[[Tensor], object]
    finish: Callable[[Tensor], object]
    take: Callable[[Tensor], object]


class FusedAllReduce(Reduction):
    """Reduces what a function writes into the slot; it must fit into one chunk.

    Two ranks, and small chunks, are reduced by each rank into ``buffer``, which is its own, unless ``combines`` is set.
    """

    def __init__(
        self, place: Place, num_elements: int, chunk_elements: int, operation: str, fusion: Fusion, buffer: Tensor
    ) -> None:
        super().__init__(place, num_elements, buffer.dtype, chunk_elements, operation, None, fusion.finish)
        self._fusion = fusion
        self._buffer = buffer

    def fill(self, index: int, slot: Tensor, unneeded: tuple[int, int] = (0, 0)) -> None:
        """Write a chunk into the slot of this rank."""
        self._fusion.fill(slot[: self._num_elements])

    def drain(self, index: int, slots: Sequence[Tensor]) -> None:
        """Take the result of a chunk from the slots."""
        num_elements = self._num_elements
        if self.combines:
            self._fusion.take(slots[0][:num_elements])
            return
        total = self._buffer[:num_elements]
        self.reduce_whole(total, [slot[:num_elements] for slot in slots])
        self._fusion.take(total)


class Broadcast(Operation):
    """Copies a flat tensor of one rank to the others."""

    kind = "broadcast"

    def __init__(self, place: Place, tensor: Tensor, chunk_elements: int, source: int) -> None:
        super().__init__(place, tensor.numel(), tensor.dtype, chunk_elements, source)
        self._tensor = tensor

    def fill(self, index: int, slot: Tensor, unneeded: tuple[int, int] = (0, 0)) -> None:
        """Write a chunk into the slot of this rank."""
        if self.place.rank == self.source:
            start, end = self.span(index)
            slot[: end - start].copy_(self._tensor[start:end])

    def drain(self, index: int, slots: Sequence[Tensor]) -> None:
        """Take the result of a chunk from the slots."""
        if self.source is not None and self.place.rank != self.source:
            start, end = self.span(index)
            self._tensor[start:end].copy_(slots[self.source][: end - start])


class AllGather(Operation):
    """Copies the flat tensors of all ranks into those of ``results``."""

    kind = "all_gather"

    def __init__(self, place: Place, results: Sequence[Tensor], tensor: Tensor, chunk_elements: int) -> None:
        super().__init__(place, tensor.numel(), tensor.dtype, chunk_elements)
        self._results = results
        self._tensor = tensor

    def fill(self, index: int, slot: Tensor, unneeded: tuple[int, int] = (0, 0)) -> None:
        """Write a chunk into the slot of this rank."""
        start, end = self.span(index)
        slot[: end - start].copy_(self._tensor[start:end])

    def drain(self, index: int, slots: Sequence[Tensor]) -> None:
        """Take the result of a chunk from the slots."""
        start, end = self.span(index)
        for rank, (slot, result) in enumerate(zip(slots, self._results, strict=True)):
            own = rank == self.place.rank
            result[start:end].copy_(self._tensor[start:end] if own else slot[: end - start])


class ReduceScatter(Operation):
    """Reduces the rows of ``tensor``, [ranks, elements]; each rank gets its own row, in ``result``.

    A slot holds a chunk of every row, so that a chunk of one row has 1 / ranks of its elements.
    """

    kind = "reduce_scatter"

    def __init__(
        self, place: Place, result: Tensor, tensor: Tensor, chunk_elements: int, operation: str, divisor: float | None
    ) -> None:
        super().__init__(place, result.numel(), tensor.dtype, max(1, chunk_elements // place.size), operation=operation)
        self._result = result
        self._tensor = tensor
        self._operation = operation
        self._divisor = divisor

    def _row(self, slot: Tensor, row: int, width: int) -> Tensor:
        return slot[row * width : (row + 1) * width]

    def fill(self, index: int, slot: Tensor, unneeded: tuple[int, int] = (0, 0)) -> None:
        """Write a chunk into the slot of this rank."""
        start, end = self.span(index)
        rows = slot[: self.place.size * (end - start)].view(self.place.size, end - start)
        rows.copy_(self._tensor[:, start:end])

    def drain(self, index: int, slots: Sequence[Tensor]) -> None:
        """Take the result of a chunk from the slots."""
        start, end = self.span(index)
        parts = [self._row(slot, self.place.rank, end - start) for slot in slots]
        reduce_into(self._result[start:end], parts, self._operation, self._divisor)


def part_of(num_elements: int, rank: int, size: int) -> tuple[int, int]:
    """Return where a rank's part of some elements begins and ends; parts begin at multiples of 64 elements.

    >>> [part_of(200, rank, 3) for rank in range(3)]
    [(0, 128), (128, 200), (200, 200)]
    """
    width = -(-num_elements // (64 * size)) * 64
    return min(num_elements, rank * width), min(num_elements, (rank + 1) * width)
