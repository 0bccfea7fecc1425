"""Buckets whose order all ranks have agreed on, so that nothing is negotiated any more.

Once every rank has told which tensors it will reduce again and again, and in which order they become ready, they can
be put into fixed buckets, each reduced as soon as it is full. Bucket *i* starts after bucket *i - 1* on every rank, so
the ranks agree without a word. A bucket carries more than its tensors:

- for each tensor a 1 or 0: does this rank have it? Then a tensor that no rank has is known for such everywhere;
- one more number: *I leave*. A rank that joins takes part in one more round, with zeros, and says so; all ranks see
  it at the end of that round and negotiate again from then on.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.engine import Engine
from rueda.hvd.core.entries import AVERAGE
from rueda.hvd.core.groups import OPERATIONS
from rueda.hvd.core.reduce import travelling_operation

FIRST_BUCKET_BYTES = 2**20  # small, so that communication begins early
BUCKET_BYTES = 25 * 2**20


class _Bucket:
    """The tensors that travel together: their numbers, the flat buffer, and its parts."""

    def __init__(self, numbers: list[int], shapes: list[torch.Size], dtype: torch.dtype, device: torch.device) -> None:
        self.numbers = numbers
        sizes = [shape.numel() for shape in shapes]
        self.buffer = torch.zeros(sum(sizes) + len(numbers) + 1, dtype=dtype, device=device)
        *parts, flags = self.buffer.split([*sizes, len(numbers) + 1])  # type: ignore[no-untyped-call]
        self.parts = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self.present, self.leaving = flags[:-1], flags[-1:]
        self.num_awaited = len(numbers)
        self.missing: list[int] = []  # places of the tensors that this rank did not have
        self.work: Any = None


class KnownOrder:
    """One round after another of the same reductions.

    Args:
        engine: of the ranks that agreed.
        name: the same on all of them, and of no other order.
        number: their process set.
        layout: the numbers of the tensors in each bucket.
        like: a tensor of each number: its shape, device and (unless ``wire`` is given) type.
        wire: the type they travel in; None: their own.
        operation: Average or Sum.
        prescale: what each rank multiplies by before.
        postscale: what the result is multiplied by.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        number: int,
        layout: Sequence[Sequence[int]],
        like: Sequence[Tensor],
        wire: torch.dtype | None,
        operation: int,
        prescale: float,
        postscale: float,
    ) -> None:
        self.engine = engine
        self.name = name
        self.ended = False
        self._members = engine.sets[number]
        self._prescale = prescale
        self._factor = postscale / (len(self._members) if operation == AVERAGE else 1)
        self._buckets = [
            _Bucket(list(numbers), [like[n].shape for n in numbers], wire or first.dtype, first.device)
            for numbers, first in [(numbers, like[numbers[0]]) for numbers in layout]
        ]
        self._bucket_of = {n: bucket for bucket in self._buckets for n in bucket.numbers}
        self._operation = OPERATIONS[travelling_operation(torch.float32, operation)]
        self._device = like[layout[0][0]].device.type
        self._next = 0
        self._rounds = 0
        engine.groups.sweep()
        self._group = engine.groups.get(name, self._members, self._device)  # now, while all ranks are here
        engine.orders.append(weakref.ref(self))
        weakref.finalize(self, engine.groups.drop_later, name)

    def __contains__(self, number: int) -> bool:
        return number in self._bucket_of

    def ready(self, number: int, tensors: Sequence[Tensor | None]) -> None:
        """Say that a tensor is final; ``tensors`` has it at its number, with those that were ready before."""
        bucket = self._bucket_of[number]
        bucket.num_awaited -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].num_awaited <= 0:
            self._start(self._buckets[self._next], tensors)

    def finish(self, tensors: Sequence[Tensor | None]) -> list[int]:
        """Reduce the rest of this round, wait, and write the results into the tensors.

        Args:
            tensors: one for each number; None where this rank has nothing to give.

        Returns:
            The numbers that this rank lacks and another has: :meth:`result` gives their values.
        """
        while self._next < len(self._buckets):
            self._start(self._buckets[self._next], tensors)
        needed = []
        with torch.no_grad():
            for bucket in self._buckets:
                self._wait(bucket)
                if self._factor != 1.0:
                    bucket.buffer.mul_(self._factor)
                missing = set(bucket.missing)
                places = [place for place in range(len(bucket.numbers)) if place not in missing]
                _copy([tensors[bucket.numbers[p]] for p in places], [bucket.parts[p] for p in places])
                present = bucket.present.tolist() if missing else []
                needed += [bucket.numbers[place] for place in bucket.missing if present[place]]
        if self._buckets[0].leaving.item():
            self.forget()
        self._next = 0
        self._rounds += 1
        for bucket in self._buckets:
            bucket.num_awaited = len(bucket.numbers)
        return needed

    def result(self, number: int) -> Tensor:
        """Give the reduced value of a tensor, until the next round begins."""
        bucket = self._bucket_of[number]
        part: Tensor = bucket.parts[bucket.numbers.index(number)]
        return part

    def leave(self) -> None:
        """Take part in one more round, with zeros, and tell the others: from then on all negotiate."""
        if not self.ended:
            self.ended = True
            for bucket in self._buckets[self._next :]:
                self._start(bucket, None)

    def forget(self) -> None:
        """End this order, after a round in which somebody left."""
        self.ended = True
        own = weakref.ref(self)
        if own in self.engine.orders:
            self.engine.orders.remove(own)
            for bucket in self._buckets:
                try:
                    self._wait(bucket)
                except HorovodInternalError:  # another rank had dropped this order: nobody waits for its values
                    if self.engine.failure is not None:
                        raise
            self._group = None
            self.engine.groups.drop(self.name)

    def _start(self, bucket: _Bucket, tensors: Sequence[Tensor | None] | None) -> None:
        with torch.no_grad():
            given = [None if tensors is None else tensors[n] for n in bucket.numbers]
            bucket.missing = [place for place, tensor in enumerate(given) if tensor is None]
            bucket.present.fill_(1)
            bucket.leaving.fill_(1 if self.ended else 0)
            for place in bucket.missing:
                bucket.parts[place].zero_()
                bucket.present[place] = 0
            places = [place for place, tensor in enumerate(given) if tensor is not None]
            _copy([bucket.parts[place] for place in places], [given[place] for place in places])
            if self._prescale != 1.0:
                bucket.buffer.mul_(self._prescale)
            self._next += 1
            if self.engine.failure is not None:
                raise HorovodInternalError(*self.engine.failure.args)
            if self.engine.timeline.active:
                self.engine.timeline.begin([self._label(bucket)], "ALLREDUCE")
            bucket.work = self._group.allreduce([bucket.buffer], self._operation)

    def _label(self, bucket: _Bucket) -> str:
        return f"{self.name} bucket {self._buckets.index(bucket)}"

    def _wait(self, bucket: _Bucket) -> None:
        work, bucket.work = bucket.work, None
        if work is None:
            return
        seconds = self.engine.settings.first_stall_seconds
        try:
            if not seconds or self._device == "cuda":
                work.wait()
            else:
                self._wait_watchfully(work, seconds)
        except HorovodInternalError:
            raise
        except RuntimeError as error:
            raise HorovodInternalError(f"{self.name}: a rank is gone ({str(error).splitlines()[0]})") from error
        if self.engine.timeline.active:
            self.engine.timeline.end([self._label(bucket)])

    def _wait_watchfully(self, work: Any, seconds: float) -> None:
        """Wait; after some time let rank 0 find out who is late."""
        begun = time.monotonic()
        told = None
        pause = timedelta(seconds=seconds)
        while True:
            try:
                work.wait(pause)
                break
            except RuntimeError:
                if work.is_completed():
                    work.wait()
                    break
                failure = self.engine.failure
                if failure is not None:
                    raise type(failure)(*failure.args) from None
                if told is None:
                    told = f"{self.name} step {self._rounds + 1}"
                    self.engine.report_stuck(told, time.monotonic() - begun)
                pause = timedelta(seconds=0.5)
        if told is not None:
            self.engine.report_free(told)


def _copy(targets: list[Any], sources: list[Any]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def make_layout(
    order: Sequence[int], kinds: Sequence[Any], sizes: Sequence[int], groups: Sequence[Sequence[int]] = ()
) -> list[list[int]]:
    """Put tensors into buckets, in the order in which they become ready.

    Args:
        order: their numbers, first ready first.
        kinds: for each number what must be the same in a bucket (type, device).
        sizes: for each number its bytes.
        groups: numbers that shall travel together, whatever their size.

    >>> make_layout([2, 1, 0], ["f", "f", "d"], [4, 4, 4])
    [[2], [1, 0]]
    >>> make_layout([2, 1, 0], ["f", "f", "f"], [4, 4, 4])
    [[2, 1, 0]]
    """
    grouped = {number: tuple(group) for group in groups for number in group}
    buckets: list[list[int]] = []
    open_bucket: dict[Any, tuple[list[int], int]] = {}
    done: set[int] = set()
    for number in order:
        if number in done:
            continue
        together = [n for n in grouped.get(number, (number,)) if kinds[n] == kinds[number] and n not in done]
        done.update(together)
        num_bytes = sum(sizes[n] for n in together)
        limit = BUCKET_BYTES if len(buckets) > 1 else FIRST_BUCKET_BYTES
        bucket, used = open_bucket.get(kinds[number], ([], 0))
        if number in grouped:
            buckets.append(together)
        elif bucket and used + num_bytes <= limit:
            bucket += together
            open_bucket[kinds[number]] = (bucket, used + num_bytes)
        else:
            open_bucket[kinds[number]] = (together, num_bytes)
            buckets.append(together)
    return buckets
