"""What the groups of one host and of several hosts have in common: all-reduces through the slots of a segment."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from rueda.world.shared_memory.operations import AllReduce, FusedAllReduce, Fusion, Operation, Place
from rueda.world.shared_memory.reductions import can_reduce
from rueda.world.shared_memory.segment import WHAT, Segment
from rueda.world.shared_memory.waiting import Check, Counters

Finish = Callable[[], None]


def _nothing(*_: object) -> None:
    pass


class Begun:
    """An operation that has been begun."""

    __slots__ = ("_finish", "_finished")

    def __init__(self, finish: Callable[[float], bool], finished: Finish = _nothing) -> None:
        self._finish = finish
        self._finished = finished

    def wait(self, seconds: float = math.inf) -> bool:
        """Finish it, and return False if it is not finished after ``seconds``, as far as the group can tell that.

        Raises:
            RuntimeError: a rank is gone, or has called something else.
        """
        if not self._finish(seconds):
            return False
        finished, self._finished = self._finished, _nothing
        finished()
        return True


class ReducingGroup(ABC):
    """All-reduces of flat or other CPU tensors; all ranks call them in the same order.

    Args:
        segment: the segment of the ranks on this host, with ``depth * chunk_bytes`` for each of them.
        chunk_bytes: the bytes of a chunk.
        depth: how many chunks a slot holds.
        place: the place of this rank among all ranks of the group.
        ranks: the ranks in the group of those of the segment.
        check: called while this rank waits; an error that it returns is raised.
        seconds: the time limit of a wait.
    """

    transport = ""
    """how tensors travel, in words"""

    def __init__(
        self, segment: Segment, chunk_bytes: int, depth: int, place: Place, ranks: Sequence[int], check: Check,
        seconds: float,
    ) -> None:  # fmt: skip
        self._segment = segment
        self._group_place = place
        self._place = Place(segment.rank, segment.size)  # on this host
        self._chunk_bytes = chunk_bytes
        self._depth = depth
        self._ranks = ranks
        self._counters = Counters(segment, check, seconds, ranks)
        self._slots: dict[torch.dtype, list[list[Tensor]]] = {}  # by dtype, chunk of the slot, and rank
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
        return self._group_place.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._group_place.size

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
        reduction, finish = self._all_reduce_of(tensor, operation, divisor, result, finish_part)
        self._finish(self._begin(reduction))
        finish()

    def begin_all_reduce(
        self,
        tensor: Tensor,
        operation: str = "sum",
        *,
        divisor: float | None = None,
        result: Tensor | None = None,
        finish_part: Callable[[Tensor], object] = _nothing,
    ) -> Begun:
        """Begin to reduce a tensor; it must not be changed until it is finished."""
        reduction, finish = self._all_reduce_of(tensor, operation, divisor, result, finish_part)
        return Begun(partial(self._finish, self._begin(reduction, ahead=True)), finish)

    def _all_reduce_of(
        self,
        tensor: Tensor,
        operation: str,
        divisor: float | None,
        result: Tensor | None,
        finish_part: Callable[[Tensor], object],
    ) -> tuple[AllReduce, Finish]:
        flat, finish = flat_view(tensor)
        target, finish = (flat, finish) if result is None else flat_view(result)
        elements = self._elements(flat)
        return AllReduce(self._place, target, flat, elements, operation, divisor, finish_part), finish

    @property
    def chunk_bytes(self) -> int:
        """The bytes that :meth:`begin_fused_all_reduce` can reduce at once."""
        return self._chunk_bytes

    def begin_fused_all_reduce(self, num_elements: int, dtype: torch.dtype, operation: str, fusion: Fusion) -> Begun:
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
        return Begun(partial(self._finish, begun))

    def waits_for(self) -> tuple[str, int, float] | None:
        """Return what this rank waits for, its number among the operations, and since when; any thread may ask."""
        since, operations = self._counters.waits_since, list(self._operations)
        return None if since is None or not operations else (str(operations[0]), operations[0].number, since)

    def shutdown(self) -> None:
        """Leave the group: the others get an error where they wait for this rank."""
        self._segment.close()

    @abstractmethod
    def _begin(self, operation: Operation, *, ahead: bool = False) -> Operation:
        """Begin an operation; ``ahead``: this rank does something else before it finishes it."""

    @abstractmethod
    def _finish(self, operation: Operation, seconds: float = math.inf) -> bool:
        """Finish an operation; return False if it is not finished after ``seconds``."""

    def _append(self, operation: Operation) -> None:
        """Number an operation and its chunks, which follow those that were begun before."""
        self._raise_earlier()
        self.num_operations += 1
        operation.number = self.num_operations
        operation.first = self._num_begun
        self._operations.append(operation)
        self._num_begun += operation.num_chunks

    def _operation_of(self, number: int) -> Operation:
        """Return the operation of a chunk."""
        return next(one for one in self._operations if number < one.first + one.num_chunks)

    def _fill(self, operation: Operation, number: int, unneeded: tuple[int, int] = (0, 0)) -> None:
        """Fill this rank's slot with a chunk, and tell the others of which collective it is."""
        slot = self._slots_of(operation.dtype, number)[self._place.rank]
        operation.fill(number - operation.first, slot, unneeded)
        self._counters.set(WHAT + number % self._depth, operation.what)

    def _check_same(self, operation: Operation, number: int) -> None:
        """Raise an error if another rank of this host has posted something else: the result would be meaningless."""
        what, counters = operation.what, self._counters
        for rank in range(self._place.size) if operation.source is None else (operation.source,):
            if counters.get(WHAT + number % self._depth, rank) != what:
                raise not_the_same(operation, self._ranks[rank])

    def _raise_earlier(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"shared memory: an earlier collective of this group failed ({self._error})")

    def _elements(self, tensor: Tensor) -> int:
        return self._chunk_bytes // tensor.element_size()

    def _slots_of(self, dtype: torch.dtype, number: int) -> Sequence[Tensor]:
        """Return the slots of all ranks of this host for a chunk."""
        found = self._slots.get(dtype)
        if found is None:
            whole = self._chunk_bytes // dtype.itemsize * dtype.itemsize
            size, depth = self._place.size, self._depth
            with torch.inference_mode(False):
                memory = self._segment.memory.view(size, depth, self._chunk_bytes)
                found = [[memory[rank, turn, :whole].view(dtype) for rank in range(size)] for turn in range(depth)]
            self._slots[dtype] = found
        return found[number % self._depth]


def not_the_same(operation: Operation, rank: int) -> RuntimeError:
    """Return the error of a rank that has called another collective."""
    return RuntimeError(
        f"{operation}: expected the same collective of the same size on all ranks, got another one on rank {rank}; "
        "let all ranks call the same collectives, with the same operation or source, in the same order"
    )


def flat_view(tensor: Tensor) -> tuple[Tensor, Finish]:
    """Return a flat view or copy of a tensor, and a function that copies the result back if it is a copy.

    An inference tensor can only be changed in inference mode, so outside of it a copy takes its place.
    """
    tensor = tensor.detach()
    frozen = tensor.is_inference() and not torch.is_inference_mode_enabled()
    if tensor.is_contiguous() and not frozen:
        return tensor.view(-1), _nothing
    flat = tensor.reshape(-1).clone() if frozen else tensor.reshape(-1).contiguous()
    return flat, lambda: _copy_back(tensor, flat)


def _copy_back(tensor: Tensor, flat: Tensor) -> None:
    with torch.inference_mode(tensor.is_inference()):
        tensor.copy_(flat.view(tensor.shape))
