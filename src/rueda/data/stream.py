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
    meaning on any number of workers. Iterating yields the batches from there to the end of the epoch; then the stream
    is at the start of the next epoch, which has another order. After a ``break``, the next iteration continues where
    this one stopped, unless :meth:`set_epoch` moves to another epoch. A new value of ``batch`` applies from the next
    batch on.

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
        """The local batch size, that of this worker; the global batch size is ``batch * size``."""
        return self._batch

    @batch.setter
    def batch(self, local_batch: int) -> None:
        partition.check_batch(self.num_examples, local_batch, self.size, self.remainder)
        self._batch = local_batch

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
        return partition.num_batches(self.num_examples, self._batch * self.size, self.remainder)

    def num_batches_left(self) -> int:
        """Return the number of batches in the rest of this epoch."""
        left = max(0, self.num_examples - self._position)
        return partition.num_batches(left, self._batch * self.size, self.remainder)

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
        """Return the next batch, of ``local_batch`` or else ``batch`` examples, or None once at the end of the epoch.

        After None the stream is at the start of the next epoch.
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
            local_batch: the number of examples of this worker, of all virtual workers together; by default ``batch``.
        """
        if micro_batch < 1:
            raise DataError("micro_batch", expected="1 or more", got=micro_batch, do="choose a larger one")
        parts: list[list[Batch]] | None = self._next(partial(self._fetch_parts, micro_batch), local_batch)
        return parts

    def _next(self, fetch: Callable[[int, int, int], Any], local_batch: int | None) -> Any:
        if local_batch is None:
            local_batch = self._batch
        elif local_batch != self._batch:
            partition.check_batch(self.num_examples, local_batch, self.size, self.remainder)
        if not self._has_batch(self._position, local_batch):
            self._epoch, self._position = self._epoch + 1, 0
            return None
        local_batch = self._shortened(self._position, local_batch)
        found = fetch(self._epoch, self._position, local_batch)
        self._position += local_batch * self.size  # only after success: a batch that failed is not counted
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

    def _has_batch(self, position: int, local_batch: int) -> bool:
        needed = local_batch * self.size if self.remainder == "drop" else 1
        return position + needed <= self.num_examples

    def _shortened(self, position: int, local_batch: int) -> int:
        """Return the local batch at ``position``, which is smaller at the end of an epoch if the remainder is short."""
        if self.remainder != "short":
            return local_batch
        return min(local_batch, -(-(self.num_examples - position) // self.size))

    def _share(self, position: int, local_batch: int) -> slice | Indices:
        """Return this worker's positions in the epoch's order; padding wraps around to its start."""
        end = position + local_batch * self.size
        if end <= self.num_examples:
            return slice(position + self.rank, end, self.size)
        return partition.positions_of(position, local_batch, self.rank, self.size) % self.num_examples

    def _indices(self, epoch: int, position: int, local_batch: int) -> Indices:
        """Return the indices of this worker's examples of the global batch at ``position``."""
        return self._order_of(epoch)[self._share(position, local_batch)]

    def _order_of(self, epoch: int) -> Indices:
        key = (epoch, self.seed, self.partition)
        if self._order[0] != key:
            self._order = (key, partition.order(self.num_examples, self.seed, epoch, self.partition))
        return self._order[1]

    @abstractmethod
    def _fetch(self, epoch: int, position: int, local_batch: int) -> Batch:
        """Return this worker's part of the global batch at ``position``: a pure function of its arguments."""

    def _fetch_parts(self, micro_batch: int, epoch: int, position: int, local_batch: int) -> list[list[Batch]]:
        """Return the same in micro-batches, for each virtual worker; here by slicing, which copies nothing."""
        batch = self._fetch(epoch, position, local_batch)
        of_workers = [slice(rank, None, self._num_virtual_workers) for rank in range(self._num_virtual_workers)]
        shares = [select(batch, share) for share in of_workers] if len(of_workers) > 1 else [batch]
        most = -(-local_batch // self._num_virtual_workers)
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
