"""The ranks that share a segment, and the order of their operations.

The chunks of all operations are numbered consecutively, in the order in which the operations were begun, which is the
same on all ranks. Chunk *i* uses half *i mod 2* of every slot. A rank fills it when all ranks are done with chunk
*i - 2*, and drains it when all have posted it; while it waits to drain one chunk, it fills the next.

An operation can be begun and finished separately. What fits into the slots is posted at once, and the rest when some
operation is finished: no thread works in the background, since there is rarely a core for one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from rueda.world.shared_memory.operations import AllGather, AllReduceInPlace, Broadcast, Operation, Place, ReduceScatter
from rueda.world.shared_memory.reducing_group import Begun, ReducingGroup, flat_view
from rueda.world.shared_memory.segment import COMBINED, DONE, POSTED, Segment
from rueda.world.shared_memory.waiting import Check

HALVES = 2


class SharedGroup(ReducingGroup):
    """Collectives among the ranks of a segment.

    Args:
        segment: the segment, with ``HALVES * chunk_bytes`` for each rank.
        chunk_bytes: see :class:`ReducingGroup`.
        check: see :class:`ReducingGroup`.
        seconds: see :class:`ReducingGroup`.
    """

    transport = "shared memory"

    def __init__(
        self, segment: Segment, chunk_bytes: int, check: Check = lambda: None, seconds: float = math.inf
    ) -> None:
        place = Place(segment.rank, segment.size)
        super().__init__(segment, chunk_bytes, HALVES, place, range(segment.size), check, seconds)

    def begin_all_reduce_in_place(self, tensors: Sequence[Tensor], *, divisor: float | None = None) -> Begun:
        """Begin to sum flat tensors that all ranks have mapped; nobody may use them until the function has finished it.

        Args:
            tensors: the tensors of all ranks, in rank order; each of them gets the result.
            divisor: what the sum is divided by, for an average.
        """
        return Begun(partial(self._finish, self._begin(AllReduceInPlace(self._place, tensors, divisor))))

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Copy the tensor of rank ``source`` into those of the others."""
        flat, finish = flat_view(tensor)
        self._finish(self._begin(Broadcast(self._place, flat, self._elements(flat), source)))
        finish()

    def all_gather(self, results: Sequence[Tensor], tensor: Tensor) -> None:
        """Copy the tensors of all ranks into contiguous tensors, in rank order."""
        flat, _ = flat_view(tensor)
        rows = [result.detach().view(-1) for result in results]
        self._finish(self._begin(AllGather(self._place, rows, flat, self._elements(flat))))

    def reduce_scatter(
        self, result: Tensor, tensor: Tensor, operation: str = "sum", divisor: float | None = None
    ) -> None:
        """Reduce a contiguous tensor with as many equal parts as ranks, and write this rank's part into ``result``."""
        flat, finish = flat_view(result)
        rows = tensor.detach().contiguous().view(self.size, flat.numel())
        elements = self._elements(flat)
        self._finish(self._begin(ReduceScatter(self._place, flat, rows, elements, operation, divisor)))
        finish()

    # The order of chunks.

    def _begin(self, operation: Operation, *, ahead: bool = False) -> Operation:
        with self._lock:
            self._append(operation)
            try:
                while self._num_posted < self._num_begun and self._may_post():
                    self._post()
            except BaseException as error:
                self._fail(error)
                raise
        return operation

    def _finish(self, operation: Operation, seconds: float = math.inf) -> bool:
        """Finish an operation, however long that takes."""
        end = operation.first + operation.num_chunks
        with self._lock:
            if self._num_done >= end and not operation.in_place:
                return True
            self._raise_earlier()
            try:
                while self._num_done < end:
                    self._complete_next()
                if operation.in_place:
                    self._counters.wait(COMBINED, end)
            except BaseException as error:
                self._fail(error)
                raise
        return True

    def _fail(self, error: BaseException) -> None:
        """Keep an error, after which this rank is not in step any more, and let the others not wait for it."""
        self._error = error
        self.shutdown()

    def _complete_next(self) -> None:
        """Complete the oldest chunk, and post another one meanwhile if its slot is free."""
        number = self._num_done
        if self._num_posted == number:
            self._counters.wait(DONE, number - HALVES + 1)
            self._post()
        if self._num_posted < self._num_begun and self._may_post():
            self._post()
        operation = self._operations[0]
        index = number - operation.first
        slots = self._slots_of(operation.dtype, number)
        counters = self._counters
        if operation.source is None:
            counters.wait(POSTED, number + 1)
        elif operation.source != self.rank:
            counters.wait_for(operation.source, POSTED, number + 1)
        self._check_same(operation, number)
        if operation.combines:
            operation.combine(index, slots)
            counters.set(COMBINED, number + 1)
            if not operation.in_place:  # else the others' parts are awaited when the operation is finished
                counters.wait(COMBINED, number + 1)
        operation.drain(index, slots)
        self._num_done = number + 1
        counters.set(DONE, number + 1)
        if index + 1 == operation.num_chunks:
            self._operations.popleft()

    def _may_post(self) -> bool:
        free = self._num_posted - HALVES + 1  # the chunks that all ranks must be done with
        return free <= self._num_done and self._counters.reached(DONE, free)

    def _post(self) -> None:
        number = self._num_posted
        self._fill(self._operation_of(number), number)
        self._num_posted = number + 1
        self._counters.set(POSTED, number + 1)
