"""All-reduce of the same tensors in every step, in fixed buckets and without negotiation.

Once the ranks know which tensors they will reduce in every step, and in which order these become ready, the tensors are
assigned to fixed buckets, and each bucket is reduced as soon as it is full. Every rank starts bucket *i* after bucket
*i - 1*, so the ranks need not negotiate. A rank contributes zeros for a tensor that it does not have.

A bucket contains a flag besides its tensors, by which a rank leaves: a rank that joins takes part in one more step,
with zeros, and sets this flag; all ranks see it before their next step and negotiate again from then on. They read it
only then, because the host would have to wait for the GPU at the end of the step.

Where the ranks share memory, the buckets lie in it (:mod:`rueda.world.shared_memory.fixed_buckets`): no rank sends
anything, and the reduction takes place when a rank finishes its step.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.engine import Engine
from rueda.hvd.core.entries import AVERAGE
from rueda.hvd.core.process_groups import OPERATIONS, record_event
from rueda.hvd.core.reduce import communication_operation
from rueda.world.shared_memory.fixed_buckets import FixedBuckets, SharedBucket
from rueda.world.shared_memory.reductions import sum_lists

FIRST_BUCKET_BYTES = 2**20  # small, so that communication begins early
BUCKET_BYTES = 25 * 2**20


class _Bucket:
    """Tensors that are reduced together: their numbers, the flat buffer, and the views of its parts."""

    def __init__(
        self, label: str, numbers: list[int], shapes: list[torch.Size], buffer: Tensor, shared: SharedBucket | None,
    ) -> None:  # fmt: skip
        self.label = label
        self.numbers = numbers
        self.buffer = buffer
        self._shapes = shapes
        *self.parts, self.leaving = self.split(buffer)
        self.shared = shared  # where the buffer lies in shared memory
        self.slots = [] if shared is None else [self.split(slot) for slot in shared.slots]  # by rank and position
        self.kept: dict[int, Tensor] = {}  # by position: results of a shared bucket that are read after the step
        self.num_awaited = len(numbers)
        self.own: list[int] = []  # positions of the tensors that this rank has in this step
        self.missing: list[int] = []  # positions of the others
        self.work: Any = None

    def split(self, buffer: Tensor) -> list[Tensor]:
        """Return the views of a buffer's parts: the tensors, and the flag of a rank that leaves."""
        sizes = [shape.numel() for shape in self._shapes]
        *parts, leaving = buffer.split([*sizes, 1])  # type: ignore[no-untyped-call]
        return [*(part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)), leaving]


class BucketReducer:
    """Reduces the same tensors step after step.

    Args:
        engine: the engine of this rank.
        name: a name that is the same on all ranks and unique on each.
        process_set: the process set of the ranks.
        layout: the numbers of the tensors in each bucket (see :func:`assign_buckets`).
        like: for each number a tensor with the shape and the device.
        dtypes: for each number the dtype in which the tensor is reduced.
        operation: Average or Sum.
        prescale: the factor that each rank applies before the reduction.
        postscale: the factor that is applied to the result.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        process_set: int,
        layout: Sequence[Sequence[int]],
        like: Sequence[Tensor],
        dtypes: Sequence[torch.dtype],
        operation: int,
        prescale: float,
        postscale: float,
    ) -> None:
        self.engine = engine
        self.name = name
        self._ended = False
        self._flag: Tensor | None = None  # the first bucket's flag after a step, in the memory of the host
        self._flag_event: Any = None  # after which it is there
        members = engine.sets[process_set]
        self._prescale = prescale
        self._factor = postscale / (len(members) if operation == AVERAGE else 1)
        self._divisor = None if self._factor == 1.0 else 1.0 / self._factor
        self._buckets = []
        self._operation = OPERATIONS[communication_operation(torch.float32, operation)]
        self._device = like[layout[0][0]].device.type
        engine.groups.close_dropped()
        # The ranks connect now, because all of them are in this constructor.
        sizes = [1 + sum(like[n].numel() for n in numbers) for numbers in layout]  # 1 for the flag
        bucket_bytes = [size * dtypes[numbers[0]].itemsize for size, numbers in zip(sizes, layout, strict=True)]
        self._shared = self._connect_shared(members, bucket_bytes)
        self._group: Any = None if self._shared is not None else engine.groups.get(name, members, self._device)
        for index, (numbers, size) in enumerate(zip(layout, sizes, strict=True)):
            first, dtype, shapes = like[numbers[0]], dtypes[numbers[0]], [like[n].shape for n in numbers]
            shared = None if self._shared is None else self._shared.bucket(index, dtype)
            buffer = torch.zeros(size, dtype=dtype, device=first.device) if shared is None else shared.own
            self._buckets.append(_Bucket(f"{name} bucket {index}", list(numbers), shapes, buffer, shared))
        self._bucket_of = {n: bucket for bucket in self._buckets for n in bucket.numbers}
        self._next = 0
        self._num_steps = 0
        engine.bucket_reducers.append(weakref.ref(self))
        weakref.finalize(self, engine.groups.drop, name)

    def _connect_shared(self, members: tuple[int, ...], bucket_bytes: list[int]) -> FixedBuckets | None:
        """Return buckets in shared memory, if they can be had."""
        if self._device != "cpu" or len(members) == 1:
            return None
        return self.engine.groups.buckets(self.name, members, bucket_bytes)

    def __contains__(self, number: int) -> bool:
        return number in self._bucket_of

    def ready(self, number: int, tensor_of: Callable[[int], Tensor | None]) -> None:
        """Start the buckets that are full now that a tensor is final; ``tensor_of`` returns it by number."""
        bucket = self._bucket_of[number]
        bucket.num_awaited -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].num_awaited <= 0:
            self._start(self._buckets[self._next], tensor_of)

    def finish(self, tensor_of: Callable[[int], Tensor | None]) -> list[int]:
        """Start the remaining buckets of this step, wait for all, and write the results into the tensors.

        Args:
            tensor_of: returns the tensor of a number, or None where this rank has none.

        Returns:
            The numbers of the tensors that this rank lacks; :meth:`result` returns their values.
        """
        while self._next < len(self._buckets):
            self._start(self._buckets[self._next], tensor_of)
        needed = []
        with torch.no_grad():
            for bucket in self._buckets:
                self._wait(bucket)
                if bucket.shared is not None:
                    bucket.shared.combine(self._divisor)
            for bucket in self._buckets:
                targets = [tensor_of(bucket.numbers[position]) for position in bucket.own]
                if bucket.shared is not None:
                    self._take(bucket, bucket.shared, targets)
                else:
                    if self._factor != 1.0:
                        bucket.buffer.mul_(self._factor)
                    _copy(targets, [bucket.parts[position] for position in bucket.own])
                needed += [bucket.numbers[position] for position in bucket.missing]
                bucket.num_awaited = len(bucket.numbers)
        first = self._buckets[0]
        self._flag = first.leaving if first.shared is None else first.kept[len(first.numbers)]
        if self._device == "cuda":
            self._flag = torch.empty(1, dtype=self._flag.dtype, pin_memory=True).copy_(self._flag, non_blocking=True)
            self._flag_event = record_event([self._buckets[0].buffer])
        self._next = 0
        self._num_steps += 1
        return needed

    def _take(self, bucket: _Bucket, shared: SharedBucket, targets: list[Any]) -> None:
        """Write the averages of a bucket in shared memory into the tensors of this rank, and keep those it lacks."""
        later = [*bucket.missing, len(bucket.numbers)]  # with the flag; other ranks may soon fill the bucket again
        bucket.kept = {position: torch.empty_like(bucket.slots[0][position]) for position in later}
        targets, positions = [*targets, *bucket.kept.values()], [*bucket.own, *later]
        if shared.direct:
            sum_lists(targets, [[parts[p] for p in positions] for parts in bucket.slots], self._divisor)
        else:
            self._guard(shared.wait_for_parts)
            _copy(targets, [bucket.slots[0][position] for position in positions])
        shared.release()

    def result(self, number: int) -> Tensor:
        """Return the reduced value of a tensor, which is valid until the next step begins."""
        bucket = self._bucket_of[number]
        position = bucket.numbers.index(number)
        return bucket.parts[position] if bucket.shared is None else bucket.kept[position]

    @property
    def ended(self) -> bool:
        """Whether a rank has left; then all ranks negotiate. It must be read between two steps."""
        flag, self._flag = self._flag, None
        if flag is not None:
            if self._flag_event is not None:
                self._flag_event.event.synchronize()
            if flag.item():
                self.end()
        return self._ended

    def leave(self) -> None:
        """Take part in one more step with zeros, and tell the other ranks to negotiate from then on."""
        if not self.ended:
            self._ended = True
            for bucket in self._buckets[: self._next]:
                if bucket.shared is not None:  # the other ranks count on this one's part of it
                    self._wait(bucket)
                    bucket.shared.combine(self._divisor)
            if self._shared is not None:
                self._shared.leave()
            for bucket in self._buckets[self._next :]:
                self._start(bucket, lambda number: None)

    def end(self) -> None:
        """End the use of these buckets after a step in which a rank left."""
        self._ended = True
        own = weakref.ref(self)
        if own in self.engine.bucket_reducers:
            self.engine.bucket_reducers.remove(own)
            for bucket in self._buckets:
                if bucket.shared is not None:  # posted, which is all that the others need
                    continue
                try:
                    self._wait(bucket)
                except HorovodInternalError:  # another rank has closed its group: no rank needs the values
                    if self.engine.failure is not None:
                        raise
            self._group = self._shared = None
            self.engine.groups.close_group(self.name)

    def _start(self, bucket: _Bucket, tensor_of: Callable[[int], Tensor | None]) -> None:
        with torch.no_grad():
            given = [tensor_of(n) for n in bucket.numbers]
            if bucket.shared is not None:
                self._guard(bucket.shared.open)
            bucket.own = [position for position, tensor in enumerate(given) if tensor is not None]
            bucket.missing = [position for position, tensor in enumerate(given) if tensor is None]
            bucket.leaving.fill_(1 if self._ended else 0)
            for position in bucket.missing:
                bucket.parts[position].zero_()
            _copy([bucket.parts[position] for position in bucket.own], [given[position] for position in bucket.own])
            if self._prescale != 1.0:
                bucket.buffer.mul_(self._prescale)
            self._next += 1
            if self.engine.failure is not None:
                raise HorovodInternalError(*self.engine.failure.args)
            if self.engine.timeline.active:
                self.engine.timeline.begin([bucket.label], "ALLREDUCE")
            if bucket.shared is None:
                bucket.work = self._group.allreduce([bucket.buffer], self._operation)
            else:
                bucket.shared.post()
                bucket.work = bucket.shared

    def _wait(self, bucket: _Bucket) -> None:
        work, bucket.work = bucket.work, None
        if work is None:
            return
        self._guard(work.wait)
        if self.engine.timeline.active:
            self.engine.timeline.end([bucket.label])

    def _guard(self, wait: Callable[..., object]) -> None:
        """Call a function that waits for the other ranks; raise HorovodInternalError if one of them is gone."""
        try:
            if self._device == "cuda":
                wait()
            else:
                self._wait_and_report(wait)
        except HorovodInternalError:
            raise
        except RuntimeError as error:
            raise HorovodInternalError(f"{self.name}: a rank is gone ({str(error).splitlines()[0]})") from error

    def _wait_and_report(self, wait: Callable[..., object]) -> None:
        """Wait; after some time report a stall to rank 0, which then names the late ranks."""
        seconds = self.engine.settings.first_stall_seconds or math.inf
        step = f"{self.name} step {self._num_steps + 1}"
        self.engine.waiting_step = (step, time.monotonic())
        try:
            if not wait(seconds=seconds):
                self.engine.report_stall(step, seconds)
                wait()
                self.engine.withdraw_stall(step)
        finally:
            self.engine.waiting_step = None


def _copy(targets: list[Any], sources: list[Any]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def assign_buckets(
    order: Sequence[int], kinds: Sequence[Any], sizes: Sequence[int], groups: Sequence[Sequence[int]] = ()
) -> list[list[int]]:
    """Assign tensors to buckets in the order in which they become ready.

    Args:
        order: the numbers of the tensors, the first ready one first.
        kinds: for each number the properties (dtype, device) that must be equal within a bucket.
        sizes: for each number the bytes of the tensor.
        groups: numbers that are reduced in one bucket of their own, whatever their size.

    >>> assign_buckets([2, 1, 0], ["f", "f", "d"], [4, 4, 4])
    [[2], [1, 0]]
    >>> assign_buckets([2, 1, 0], ["f", "f", "f"], [4, 4, 4])
    [[2, 1, 0]]
    """
    grouped = {number: tuple(group) for group in groups for number in group}
    buckets: list[list[int]] = []
    open_buckets: dict[Any, tuple[list[int], int]] = {}
    done: set[int] = set()
    for number in order:
        if number in done:
            continue
        together = [n for n in grouped.get(number, (number,)) if kinds[n] == kinds[number] and n not in done]
        done.update(together)
        num_bytes = sum(sizes[n] for n in together)
        limit = BUCKET_BYTES if len(buckets) > 1 else FIRST_BUCKET_BYTES
        bucket, used = open_buckets.get(kinds[number], ([], 0))
        if number in grouped:
            buckets.append(together)
        elif bucket and used + num_bytes <= limit:
            bucket += together
            open_buckets[kinds[number]] = (bucket, used + num_bytes)
        else:
            open_buckets[kinds[number]] = (together, num_bytes)
            buckets.append(together)
    return buckets
