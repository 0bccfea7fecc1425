"""A worker's way through the epochs: where it stands, what comes next, and how to go on after a stop."""

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
    """Anything that says which of how many workers this is: a World, or a stand-in for one."""

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""

    @property
    def size(self) -> int:
        """How many workers there are."""


class Stream(ABC):
    """What all loaders for training share: the partition, the place in the epoch and its state.

    A stream stands at ``position`` of ``epoch``, counted in examples that *all* workers have taken of the epoch; this
    is what makes its state mean the same on any number of workers. Iterating gives the batches from there to the end
    of the epoch; then the stream stands at the start of the next one, which has another order. A loop that is left
    early goes on where it was, unless :meth:`set_epoch` moves it. Changing ``batch`` changes the batches from the next
    one on.
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
        """How many examples this worker takes at each step; the global batch is ``batch * size``."""
        return self._batch

    @batch.setter
    def batch(self, local_batch: int) -> None:
        partition.check_batch(self.num_examples, local_batch, self.size)
        self._batch = local_batch

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many examples of this epoch all workers together have been given."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``; a stream that is in it already (a resumed one) stays where it is."""
        if epoch < 0:
            raise DataError("epoch", expected="0 or more", got=epoch, do="count epochs from 0")
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0

    def __len__(self) -> int:
        """How many batches a whole epoch has, the same on every worker."""
        return partition.num_batches(self.num_examples, self._batch * self.size, self.remainder)

    def num_batches_left(self) -> int:
        """How many batches the rest of this epoch has."""
        left = max(0, self.num_examples - self._position)
        return partition.num_batches(left, self._batch * self.size, self.remainder)

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, local_batch: int | None = None) -> Batch | None:
        """Give the next batch, of ``local_batch`` examples or else ``batch``; at the end of the epoch, None once.

        After None the stream stands at the start of the next epoch.
        """
        if local_batch is None:
            local_batch = self._batch
        elif local_batch != self._batch:
            partition.check_batch(self.num_examples, local_batch, self.size)
        if not self._has_batch(self._position, local_batch):
            self._epoch, self._position = self._epoch + 1, 0
            return None
        batch = self._fetch(self._epoch, self._position, local_batch)
        self._position += local_batch * self.size  # only now: what failed to come does not count
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Say where the stream stands: what was handed out counts, what is only prepared does not."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self.seed,
            "partition": self.partition,
            "num_examples": self.num_examples,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the next unseen example of a saved state, which may come from another number of workers."""
        missing = sorted({"epoch", "position", "seed", "partition", "num_examples"} - set(state))
        if missing:
            raise DataError(
                "data state", expected=", ".join(missing), got=sorted(state), do="load a loader's own state"
            )
        if state["num_examples"] != self.num_examples:
            raise DataError(
                "data state",
                expected=f"one of {self.num_examples} examples",
                got=state["num_examples"],
                do="resume with the data that the run began with",
            )
        if state["epoch"] < 0 or state["position"] < 0:
            raise DataError("data state", expected="epoch and position of 0 or more", got=state, do="load another one")
        self.seed, self.partition = int(state["seed"]), str(state["partition"])
        self._check()
        self._epoch, self._position = int(state["epoch"]), int(state["position"])

    def _has_batch(self, position: int, local_batch: int) -> bool:
        needed = 1 if self.remainder == "pad" else local_batch * self.size
        return position + needed <= self.num_examples

    def _share(self, position: int, local_batch: int) -> slice | Indices:
        """Give this worker's places in the epoch's order; where the last batch is padded, the order begins anew."""
        end = position + local_batch * self.size
        if end <= self.num_examples:
            return slice(position + self.rank, end, self.size)
        return partition.positions_of(position, local_batch, self.rank, self.size) % self.num_examples

    def _indices(self, epoch: int, position: int, local_batch: int) -> Indices:
        """Give this worker's examples of the global batch at ``position``."""
        return self._order_of(epoch)[self._share(position, local_batch)]

    def _order_of(self, epoch: int) -> Indices:
        key = (epoch, self.seed, self.partition)
        if self._order[0] != key:
            self._order = (key, partition.order(self.num_examples, self.seed, epoch, self.partition))
        return self._order[1]

    @abstractmethod
    def _fetch(self, epoch: int, position: int, local_batch: int) -> Batch:
        """Make this worker's part of the global batch at ``position``: a pure function of its arguments."""


_NOTHING: Indices = np.empty(0, dtype=np.int64)


def current_world() -> Ranked:
    """Give the world of this process; imported here, since it loads torch.distributed."""
    from rueda.world import current

    return current()


def batch_device(world: object, device: torch.device | str | None) -> torch.device | None:
    """Decide where batches are wanted: as said, else where the world computes; None where nobody says."""
    wanted = getattr(world or current_world(), "device", None) if device is None else device
    return None if wanted is None else torch.device(wanted)
