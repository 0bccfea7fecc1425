"""The base class of all training loaders: the position in the epochs, and its state dict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from rueda.data import partition
from rueda.data.partition import Indices
from rueda.errors import DataError

Batch = tuple[Any, Any]


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
        partition.check_batch(self.num_examples, local_batch, self.size)
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

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, local_batch: int | None = None) -> Batch | None:
        """Return the next batch, of ``local_batch`` or else ``batch`` examples, or None once at the end of the epoch.

        After None the stream is at the start of the next epoch.
        """
        if local_batch is None:
            local_batch = self._batch
        elif local_batch != self._batch:
            partition.check_batch(self.num_examples, local_batch, self.size)
        if not self._has_batch(self._position, local_batch):
            self._epoch, self._position = self._epoch + 1, 0
            return None
        batch = self._fetch(self._epoch, self._position, local_batch)
        self._position += local_batch * self.size  # only after success: a batch that failed is not counted
        return batch

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
        needed = 1 if self.remainder == "pad" else local_batch * self.size
        return position + needed <= self.num_examples

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


_NOTHING: Indices = np.empty(0, dtype=np.int64)


def current_world() -> Ranked:
    """Return the world of this process; the import is delayed because it imports torch.distributed."""
    from rueda.world import current

    return current()


def batch_device(world: object, device: torch.device | str | None) -> torch.device | None:
    """Return the device of the batches: the given one, else that of the world, else None."""
    wanted = getattr(world or current_world(), "device", None) if device is None else device
    return None if wanted is None else torch.device(wanted)
