"""The base class of all training loaders: the position in the epochs, and its state dict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from rueda.data import partition
from rueda.data.nest import select
from rueda.data.partition import Indices
from rueda.errors import DataError

Batch = Any
"""any nest of tensors, see :mod:`rueda.data.nest`; of :class:`rueda.Arrays`, a pair (inputs, targets)"""
ReadingAs = Callable[[int], AbstractContextManager[None]]


class Ranked(Protocol):
    """Anything with a rank and a size: a World, or a substitute for one."""

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0."""

    @property
    def size(self) -> int:
        """The number of workers."""


class Stream(ABC):
    """The partition, the position in the epoch and its state, which all training loaders share.

    ``position`` counts the examples of ``epoch`` that *all* workers together have taken, so the state has the same
    meaning on any number of workers. A batch of all workers has ``global_batch`` examples, of which each worker has
    every n-th; if they cannot be divided evenly, some workers have one more than others. Iterating yields the batches
    from there to the end of the epoch; then the stream is at the start of the next epoch, which has another order.
    After a ``break``, the next iteration continues where this one stopped, unless :meth:`set_epoch` moves to another
    epoch. A new value of ``batch`` or ``global_batch`` applies from the next batch on.

    Args:
        num_examples: the number of examples in an epoch.
        batch: the local batch size, that of this worker.
        world: gives the rank and the number of workers; by default the current world.
        seed: seed of the order; the same on all workers.
        partition: ``shards``, ``random`` or ``sequential``, see :mod:`rueda.data.partition`.
        remainder: ``drop``, ``pad`` or ``short``, see :class:`rueda.Loader`.
    """

    def __init__(
        self,
        num_examples: int,
        batch: int,
        *,
        world: Ranked | None = None,
        seed: int = 0,
        partition: str = "shards",
        remainder: str = "drop",
    ) -> None:
        world = world or current_world()
        self.num_examples, self.rank, self.size = num_examples, world.rank, world.size
        self.seed, self.partition, self.remainder = seed, partition, remainder
        self._check()
        self.batch = batch
        self._num_virtual_workers = 1
        self._reading_as: ReadingAs = _alone
        self._epoch = self._position = 0
        self._order: tuple[tuple[object, ...], Indices] = ((), _NOTHING)

    def _check(self) -> None:
        partition.check_examples(self.num_examples)
        partition.check_worker(self.rank, self.size)
        partition.check_remainder(self.remainder)
        partition.order(1, self.seed, 0, self.partition)

    @property
    def batch(self) -> int:
        """The local batch size, the most that a worker has of the global batch; to set it sets ``batch * size``."""
        return -(-self._global_batch // self.size)

    @batch.setter
    def batch(self, local_batch: int) -> None:
        partition.check_batch(self.num_examples, local_batch, self.size, self.remainder)
        self._global_batch = local_batch * self.size

    @property
    def global_batch(self) -> int:
        """The examples of all workers in a batch, at least one for each worker."""
        return self._global_batch

    @global_batch.setter
    def global_batch(self, total: int) -> None:
        partition.check_global_batch(self.num_examples, total, self.size, self.remainder)
        self._global_batch = total

    def num_own(self, total: int) -> int:
        """Return how many of the examples of a global batch are this worker's.

        >>> from rueda.data import Loader
        >>> class Worker:
        ...     size = 3
        ...     def __init__(self, rank):
        ...         self.rank = rank
        >>> [Loader(range(8), 1, world=Worker(rank)).num_own(8) for rank in range(3)]
        [3, 3, 2]
        """
        return -(-(total - self.rank) // self.size)

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """The number of examples of this epoch that all workers together have taken."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of ``epoch``; if this is the current epoch, as after a resume, keep the position."""
        if epoch < 0:
            raise DataError("epoch", expected="0 or more", got=epoch, do="count epochs from 0")
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, the same on every worker."""
        return partition.num_batches(self.num_examples, self.global_batch, self.remainder)

    def num_batches_left(self) -> int:
        """Return the number of batches in the rest of this epoch."""
        left = max(0, self.num_examples - self._position)
        return partition.num_batches(left, self.global_batch, self.remainder)

    @property
    def epoch_ended(self) -> bool:
        """Whether all batches of this epoch are taken."""
        return self.num_batches_left() == 0

    def read_for_workers(self, num_virtual_workers: int, reading_as: ReadingAs) -> None:
        """Read each batch for several virtual workers of a rehearsal, which share it: each has every n-th example.

        Args:
            num_virtual_workers: the number of virtual workers.
            reading_as: returns the context in which the examples of a virtual worker are read, so that a data set that
                draws random numbers draws the same ones as on real workers.
        """
        self._num_virtual_workers, self._reading_as = num_virtual_workers, reading_as

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, local_batch: int | None = None) -> Batch | None:
        """Return this worker's part of the next batch, or None once at the end of the epoch.

        After None the stream is at the start of the next epoch.

        Args:
            local_batch: the number of examples on each worker; by default ``global_batch`` is divided.
        """
        return self._next(self._fetch, local_batch)

    def next_parts(self, micro_batch: int, local_batch: int | None = None) -> list[list[Batch]] | None:
        """Return the next batch in micro-batches: ``parts[worker][number]``; None once at the end of the epoch.

        It takes the same examples as :meth:`next_batch`, and moves on in the same way. The outer list has an entry for
        each virtual worker (:meth:`read_for_workers`), so a single one outside a rehearsal. The inner list has that
        worker's examples in their order, at most ``micro_batch`` in each entry. Data that are not
        :class:`rueda.Arrays` are collated micro-batch by micro-batch: padding is that of a real worker's micro-batch,
        and a batch need not be divisible. The examples of a virtual worker are read and collated within its own
        context, one micro-batch after another, as the real worker does.

        >>> from rueda.data import Loader
        >>> letters = [torch.full((length,), length) for length in (1, 2, 3, 4)]  # of different lengths
        >>> loader = Loader(letters, batch=4, collate_fn=torch.nn.utils.rnn.pad_sequence, seed=2)
        >>> [[part.T.tolist() for part in worker] for worker in loader.next_parts(2)]
        [[[[1, 0, 0], [3, 3, 3]], [[4, 4, 4, 4], [2, 2, 0, 0]]]]

        Args:
            micro_batch: the most examples of a micro-batch; the last one may have fewer.
            local_batch: the number of examples of each worker, of all virtual workers together; by default
                ``global_batch`` is divided.
        """
        if micro_batch < 1:
            raise DataError("micro_batch", expected="1 or more", got=micro_batch, do="choose a larger one")
        parts: list[list[Batch]] | None = self._next(partial(self._fetch_parts, micro_batch), local_batch)
        return parts

    def _next(self, fetch: Callable[[int, int, int], Any], local_batch: int | None) -> Any:
        total = self._global_batch if local_batch is None else local_batch * self.size
        if local_batch is not None and total != self._global_batch:
            partition.check_batch(self.num_examples, local_batch, self.size, self.remainder)
        if not self._has_batch(self._position, total):
            self._epoch, self._position = self._epoch + 1, 0
            return None
        total = self._shortened(self._position, total)
        found = fetch(self._epoch, self._position, total)
        self._position += total  # only after success: a batch that failed is not counted
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state; batches that were prefetched but not yet returned do not count."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self.seed,
            "partition": self.partition,
            "num_examples": self.num_examples,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the next unseen example of a saved state, which may come from another number of workers."""
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            do = "load a loader's own state"
            raise DataError("data state", expected=", ".join(missing), got=sorted(state), do=do)
        if state["num_examples"] != self.num_examples:
            expected, do = f"one of {self.num_examples} examples", "resume with the data that the run began with"
            raise DataError("data state", expected=expected, got=state["num_examples"], do=do)
        if state["epoch"] < 0 or state["position"] < 0:
            raise DataError("data state", expected="epoch and position of 0 or more", got=state, do="load another one")
        self.seed, self.partition = int(state["seed"]), str(state["partition"])
        self._check()
        self._epoch, self._position = int(state["epoch"]), int(state["position"])

    def _has_batch(self, position: int, total: int) -> bool:
        needed = total if self.remainder == "drop" else 1
        return position + needed <= self.num_examples

    def _shortened(self, position: int, total: int) -> int:
        """Return the global batch at ``position``, which is smaller at the end of an epoch if the remainder is short.

        Then it is divided evenly, so that a worker may repeat an example.
        """
        if self.remainder != "short":
            return total
        return min(total, -(-(self.num_examples - position) // self.size) * self.size)

    def _share(self, position: int, total: int) -> slice | Indices:
        """Return this worker's positions in the epoch's order; padding wraps around to its start."""
        end = position + total
        if end <= self.num_examples:
            return slice(position + self.rank, end, self.size)
        return np.arange(position + self.rank, end, self.size, dtype=np.int64) % self.num_examples

    def _indices(self, epoch: int, position: int, total: int) -> Indices:
        """Return the indices of this worker's examples of the global batch at ``position``."""
        return self._order_of(epoch)[self._share(position, total)]

    def _order_of(self, epoch: int) -> Indices:
        key = (epoch, self.seed, self.partition)
        if self._order[0] != key:
            self._order = (key, partition.order(self.num_examples, self.seed, epoch, self.partition))
        return self._order[1]

    @abstractmethod
    def _fetch(self, epoch: int, position: int, total: int) -> Batch:
        """Return this worker's part of the global batch at ``position``: a pure function of its arguments.

        Args:
            epoch: the epoch.
            position: the examples of the epoch before the global batch.
            total: the examples of the global batch.
        """

    def _fetch_parts(self, micro_batch: int, epoch: int, position: int, total: int) -> list[list[Batch]]:
        """Return the same in micro-batches, for each virtual worker; here by slicing, which copies nothing."""
        batch = self._fetch(epoch, position, total)
        of_workers = [slice(rank, None, self._num_virtual_workers) for rank in range(self._num_virtual_workers)]
        shares = [select(batch, share) for share in of_workers] if len(of_workers) > 1 else [batch]
        most = -(-self.num_own(total) // self._num_virtual_workers)
        starts = range(0, most, micro_batch)
        if len(starts) == 1:
            return [[share] for share in shares]
        return [[select(share, slice(start, start + micro_batch)) for start in starts] for share in shares]


_NOTHING: Indices = np.empty(0, dtype=np.int64)


def _alone(_: int) -> AbstractContextManager[None]:
    return nullcontext()


def current_world() -> Ranked:
    """Return the world of this process; the import is delayed because it imports torch.distributed."""
    from rueda.world import current

    return current()


def batch_device(world: object, device: torch.device | str | None) -> torch.device | None:
    """Return the device of the batches: the given one, else that of the world, else None."""
    wanted = getattr(world or current_world(), "device", None) if device is None else device
    return None if wanted is None else torch.device(wanted)
