"""The ranks that share a segment, and the order of their operations.

The chunks of all operations are numbered consecutively, in the order in which the operations were begun, which is the
same on all ranks. Chunk *i* uses half *i mod 2* of every slot. A rank fills it when all ranks are done with chunk
*i - 2*, and drains it when all have posted it; while it waits to drain one chunk, it fills the next.

An operation can be begun and finished separately. What fits into the slots is posted at once, and the rest when some
operation is finished: no thread works in the background, since there is rarely a core for one.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from rueda.world.shared_memory.operations import (
    AllGather,
    AllReduce,
    AllReduceInPlace,
    Broadcast,
    FusedAllReduce,
    Fusion,
    Operation,
    Place,
    ReduceScatter,
)  # fmt: skip
from rueda.world.shared_memory.reductions import can_reduce
from rueda.world.shared_memory.segment import COMBINED, DONE, POSTED, WHAT, Segment
from rueda.world.shared_memory.waiting import Check, Counters

HALVES = 2
Finish = Callable[[], None]


def _nothing(*_: object) -> None:
    pass


class SharedGroup:
    """Collectives of flat or other CPU tensors among the ranks of a segment; all ranks call them in the same order.

    Args:
        segment: the segment, with ``HALVES * chunk_bytes`` for each rank.
        chunk_bytes: the bytes of a chunk.
        check: called while this rank waits; an error that it returns is raised.
        seconds: the time limit of a wait.
    """

    def __init__(
        self, segment: Segment, chunk_bytes: int, check: Check = lambda: None, seconds: float = math.inf
    ) -> None:
        self._segment = segment
        self._place = Place(segment.rank, segment.size)
        self._chunk_bytes = chunk_bytes
        self._counters = Counters(segment, check, seconds)
        self._slots: dict[torch.dtype, list[list[Tensor]]] = {}  # by dtype, half and rank
        self._buffers: dict[torch.dtype, Tensor] = {}  # this rank's own memory of a chunk, by dtype
        self._lock = threading.Lock()
        self._operations: deque[Operation] = deque()  # those that are not finished
        self._num_begun = 0  # chunks of the operations that were begun, and so on
        self._num_posted = 0
        self._num_done = 0
        self._error: BaseException | None = None
        self.num_operations = 0
        """how many operations were begun"""

    @property
    def rank(self) -> int:
        """The rank of this worker in the group."""
        return self._place.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._place.size

    @staticmethod
    def can_reduce(tensor: Tensor, operation: str) -> bool:
        """Return whether :meth:`all_reduce` can reduce a tensor."""
        return tensor.device.type == "cpu" and tensor.layout == torch.strided and can_reduce(tensor.dtype, operation)

    def all_reduce(
        self,
        tensor: Tensor,
        operation: str = "sum",
        *,
        divisor: float | None = None,
        result: Tensor | None = None,
        finish_part: Callable[[Tensor], object] = _nothing,
    ) -> None:
        """Reduce a tensor over all ranks.

        Args:
            tensor: a CPU tensor with the same number of elements on all ranks.
            operation: ``sum``, ``min``, ``max`` or ``product``.
            divisor: what the result is divided by, for an average.
            result: a contiguous tensor for the result; by default it overwrites ``tensor``.
            finish_part: changes a part of the result in place, such as by a factor; called for each part once.
        """
        self.begin_all_reduce(tensor, operation, divisor=divisor, result=result, finish_part=finish_part)()

    def begin_all_reduce(
        self,
        tensor: Tensor,
        operation: str = "sum",
        *,
        divisor: float | None = None,
        result: Tensor | None = None,
        finish_part: Callable[[Tensor], object] = _nothing,
    ) -> Finish:
        """Begin to reduce a tensor; it must not be changed until the returned function has finished it."""
        flat, finish = _flat(tensor)
        target, finish = (flat, finish) if result is None else _flat(result)
        elements = self._elements(flat)
        begun = self._begin(AllReduce(self._place, target, flat, elements, operation, divisor, finish_part))

        def finish_all() -> None:
            self._finish(begun)
            finish()

        return finish_all

    @property
    def chunk_bytes(self) -> int:
        """The bytes that :meth:`begin_fused_all_reduce` can reduce at once."""
        return self._chunk_bytes

    def begin_fused_all_reduce(self, num_elements: int, dtype: torch.dtype, operation: str, fusion: Fusion) -> Finish:
        """Begin to reduce what ``fusion.fill`` writes into this rank's slot; ``fusion.take`` gets the result.

        Many small tensors go from where they are into the slot, and from there back, without another buffer.
        """
        chunk_elements = self._chunk_bytes // dtype.itemsize
        if num_elements > chunk_elements:
            raise ValueError(f"a fused all-reduce: expected at most {chunk_elements} elements, got {num_elements}")
        buffer = self._buffers.get(dtype)
        if buffer is None:
            with torch.inference_mode(False):
                buffer = self._buffers[dtype] = torch.empty(chunk_elements, dtype=dtype)
        begun = self._begin(FusedAllReduce(self._place, num_elements, chunk_elements, operation, fusion, buffer))
        return partial(self._finish, begun)

    def begin_all_reduce_in_place(self, tensors: Sequence[Tensor], *, divisor: float | None = None) -> Finish:
        """Begin to sum flat tensors that all ranks have mapped; nobody may use them until the function has finished it.

        Args:
            tensors: the tensors of all ranks, in rank order; each of them gets the result.
            divisor: what the sum is divided by, for an average.
        """
        return partial(self._finish, self._begin(AllReduceInPlace(self._place, tensors, divisor)))

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Copy the tensor of rank ``source`` into those of the others."""
        flat, finish = _flat(tensor)
        self._finish(self._begin(Broadcast(self._place, flat, self._elements(flat), source)))
        finish()

    def all_gather(self, results: Sequence[Tensor], tensor: Tensor) -> None:
        """Copy the tensors of all ranks into contiguous tensors, in rank order."""
        flat, _ = _flat(tensor)
        rows = [result.detach().view(-1) for result in results]
        self._finish(self._begin(AllGather(self._place, rows, flat, self._elements(flat))))

    def reduce_scatter(
        self, result: Tensor, tensor: Tensor, operation: str = "sum", divisor: float | None = None
    ) -> None:
        """Reduce a contiguous tensor with as many equal parts as ranks, and write this rank's part into ``result``."""
        flat, finish = _flat(result)
        rows = tensor.detach().contiguous().view(self.size, flat.numel())
        elements = self._elements(flat)
        self._finish(self._begin(ReduceScatter(self._place, flat, rows, elements, operation, divisor)))
        finish()

    def waits_for(self) -> tuple[str, int, float] | None:
        """Return what this rank waits for, its number among the operations, and since when; any thread may ask."""
        since, operations = self._counters.waits_since, list(self._operations)
        return None if since is None or not operations else (str(operations[0]), operations[0].number, since)

    def shutdown(self) -> None:
        """Leave the group: the others get an error where they wait for this rank."""
        self._segment.close()

    # The order of chunks.

    def _elements(self, tensor: Tensor) -> int:
        return self._chunk_bytes // tensor.element_size()

    def _begin(self, operation: Operation) -> Operation:
        with self._lock:
            self._raise_earlier()
            self.num_operations += 1
            operation.number = self.num_operations
            operation.first = self._num_begun
            self._num_begun += operation.num_chunks
            self._operations.append(operation)
            try:
                while self._num_posted < self._num_begun and self._may_post():
                    self._post()
            except BaseException as error:
                self._error = error
                raise
        return operation

    def _finish(self, operation: Operation) -> None:
        end = operation.first + operation.num_chunks
        with self._lock:
            if self._num_done >= end and not operation.in_place:
                return
            self._raise_earlier()
            try:
                while self._num_done < end:
                    self._complete_next()
                if operation.in_place:
                    self._counters.wait(COMBINED, end)
            except BaseException as error:  # this rank is not in step with the others any more
                self._error = error
                raise

    def _raise_earlier(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"shared memory: an earlier collective of this group failed ({self._error})")

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
        slots = self._slots_of(operation.dtype)[number % HALVES]
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

    def _check_same(self, operation: Operation, number: int) -> None:
        """Raise an error if another rank has posted something else: the result would be meaningless."""
        what, counters = operation.what, self._counters
        for rank in range(self.size) if operation.source is None else (operation.source,):
            if counters.get(WHAT + number % HALVES, rank) != what:
                raise RuntimeError(
                    f"{operation}: expected the same collective of the same size on all ranks, got another one on rank "
                    f"{rank}; let all ranks call the same collectives in the same order"
                )

    def _may_post(self) -> bool:
        free = self._num_posted - HALVES + 1  # the chunks that all ranks must be done with
        return free <= self._num_done and self._counters.reached(DONE, free)

    def _post(self) -> None:
        number = self._num_posted
        operation = next(one for one in self._operations if number < one.first + one.num_chunks)
        slot = self._slots_of(operation.dtype)[number % HALVES][self.rank]
        operation.fill(number - operation.first, slot)
        self._num_posted = number + 1
        self._counters.set(WHAT + number % HALVES, operation.what)
        self._counters.set(POSTED, number + 1)

    def _slots_of(self, dtype: torch.dtype) -> Sequence[Sequence[Tensor]]:
        found = self._slots.get(dtype)
        if found is None:
            whole = self._chunk_bytes // dtype.itemsize * dtype.itemsize
            with torch.inference_mode(False):
                memory = self._segment.memory.view(self.size, HALVES, self._chunk_bytes)
                found = [
                    [memory[rank, half, :whole].view(dtype) for rank in range(self.size)] for half in range(HALVES)
                ]
            self._slots[dtype] = found
        return found


def _flat(tensor: Tensor) -> tuple[Tensor, Finish]:
    """Return a flat view or copy of a tensor, and a function that copies the result back if it is a copy."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor.view(-1), _nothing
    flat = tensor.reshape(-1).contiguous()
    return flat, lambda: _copy_back(tensor, flat)


def _copy_back(tensor: Tensor, flat: Tensor) -> None:
    tensor.copy_(flat.view(tensor.shape))
