"""Buckets that are reduced in every step, and that lie in the shared memory themselves.

The gradients of a step are copied into a bucket anyway. If the bucket lies in shared memory, that is the only copy on
the way in. Of two ranks, each sums the buckets of both straight into its gradients: it waits for the other only once,
which counts where cores are busy. Of more ranks, each sums a part of the bucket into that of the first rank, and copies
the whole from there into its gradients.

Every rank fills and posts its buckets in the same order, step after step, so a bucket's number counts through all
steps. A bucket may be filled again when all ranks are done with it in the step before.

A rank that *leaves* posts its buckets once more and reduces nothing, since it cannot wait for the others. It says so
before it posts. All ranks see that before they reduce, and then each of them reduces the whole bucket for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rueda.world.shared_memory.operations import part_of
from rueda.world.shared_memory.reductions import reduce_into
from rueda.world.shared_memory.segment import COMBINED, DONE, LEAVING, POSTED, Segment
from rueda.world.shared_memory.waiting import Check, Counters

_ALIGNMENT = 4096


class SharedBucket:
    """One bucket of all ranks.

    In every step: :meth:`open` it, fill :attr:`own`, :meth:`post` it, :meth:`wait`, and :meth:`combine` it. If it is
    :attr:`direct`, sum all :attr:`slots`; otherwise :meth:`wait_for_parts`, and read the first slot. Then
    :meth:`release` it.
    """

    def __init__(self, owner: FixedBuckets, slots: Sequence[Tensor]) -> None:
        self._owner = owner
        self.slots = slots
        """the buckets of all ranks"""
        self.own = slots[owner.rank]
        """this rank's bucket"""
        self._number = 0  # of this bucket in this step
        self._combined = True

    def open(self, seconds: float = math.inf) -> bool:
        """Wait until this rank may fill the bucket; return False if ``seconds`` are over."""
        return not self._number or self._owner.counters.wait(DONE, self._number, seconds)

    def post(self) -> None:
        """Tell the others that the bucket is filled; buckets are posted in the order of their indices."""
        owner = self._owner
        owner.num_posted += 1
        self._number = owner.num_posted
        self._combined = False
        owner.counters.set(POSTED, self._number)

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until all ranks have posted the bucket; return False if ``seconds`` are over.

        Raises:
            PeerGone: a rank is gone.
        """
        return self._owner.counters.wait(POSTED, self._number, seconds)

    @property
    def direct(self) -> bool:
        """Whether each rank sums the whole bucket for itself: of two ranks, and where one leaves."""
        owner = self._owner
        if owner.size == 2:
            return True
        return any(0 < owner.counters.get(LEAVING, rank) <= self._number for rank in range(owner.size))

    def combine(self, divisor: float | None) -> None:
        """Sum this rank's part of the bucket into that of the first rank, unless it is summed directly.

        Args:
            divisor: what the sum is divided by.
        """
        if self._combined or self.direct:
            return
        owner = self._owner
        low, high = part_of(self.own.numel(), owner.rank, owner.size)
        if high > low:
            parts = [slot[low:high] for slot in self.slots]
            reduce_into(parts[0], parts, "sum", divisor)
        self._combined = True
        owner.counters.set(COMBINED, self._number)

    def wait_for_parts(self, seconds: float = math.inf) -> bool:
        """Wait until all ranks have combined their parts; return False if ``seconds`` are over."""
        return self._owner.counters.wait(COMBINED, self._number, seconds)

    def release(self) -> None:
        """Let all ranks fill the bucket again."""
        self._owner.counters.set(DONE, self._number)


class FixedBuckets:
    """All buckets of a rank.

    Args:
        segment: a segment with :func:`needed_bytes`.
        bucket_bytes: the sizes of the buckets.
        check: called while this rank waits; an error that it returns is raised.
    """

    def __init__(self, segment: Segment, bucket_bytes: Sequence[int], check: Check) -> None:
        self._segment = segment
        self.rank, self.size = segment.rank, segment.size
        self.counters = Counters(segment, check, math.inf)
        self.num_posted = 0
        slots = segment.memory.view(self.size, -1)
        starts = [0]
        for num_bytes in bucket_bytes:
            starts.append(starts[-1] + _aligned(num_bytes))
        self._slots = [
            [slots[rank, start : start + num_bytes] for rank in range(self.size)]
            for start, num_bytes in zip(starts, bucket_bytes, strict=False)
        ]

    def bucket(self, index: int, dtype: torch.dtype) -> SharedBucket:
        """Return a bucket, as a flat tensor of a dtype on each rank."""
        return SharedBucket(self, [slot.view(dtype) for slot in self._slots[index]])

    def leave(self) -> None:
        """Tell the others that this rank posts what it has not posted of this step, but reduces nothing any more."""
        self.counters.set(LEAVING, self.num_posted + 1)

    def shutdown(self) -> None:
        """Leave the group: the others get an error where they wait for this rank."""
        self._segment.close()


def needed_bytes(bucket_bytes: Sequence[int], size: int) -> int:
    """Return the bytes of the segment of ``size`` ranks.

    >>> needed_bytes([10, 5000], 2)
    24576
    """
    return size * sum(_aligned(num_bytes) for num_bytes in bucket_bytes)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
