"""A sampler that divides the examples which are left in an epoch among the workers that there are.

All ranks shuffle all examples in the same way, leave out those that are processed, and rank r of n takes the examples
r, r + n, r + 2n ... of the rest, so that the batches number b of all ranks together are the next ``n * batch_size``
examples of that order. Hence a rank that records its batch b knows what all ranks have processed, without a message.

For equal numbers of batches the order is filled up to a multiple of n with its first examples, as torch's
``DistributedSampler`` does; these examples are seen twice at the end of an epoch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

from torch.utils.data import Sampler

from rueda.hvd.basics import rank, size
from rueda.hvd.torch.functions import allgather_object, broadcast_object


class Progress(NamedTuple):
    """What a sampler has recorded in this epoch; a commit keeps it, and nothing of it is changed in place."""

    epoch: int = 0
    before: frozenset[int] = frozenset()  # processed before the examples were divided
    order: tuple[int, ...] = ()  # the examples that were divided then, filled up
    positions: tuple[tuple[int, int], ...] = ()  # parts of that order which all ranks have processed
    own: frozenset[int] = frozenset()  # indices that this rank has recorded, of which the others do not know
    by_indices: bool = False  # whether indices have been recorded one by one

    def processed(self) -> frozenset[int]:
        """Return all indices that are processed, as far as this rank knows."""
        parts = (self.order[start:stop] for start, stop in self.positions)
        return self.before.union(self.own, *parts)


class ElasticSampler(Sampler[int]):
    """The indices of this rank's examples, without those that were processed before the workers changed.

    Give it to the ``TorchState``, call :meth:`record_batch` after each batch, and :meth:`set_epoch` at the end of each
    epoch. After a commit nothing that was recorded before it is processed again in this epoch, whoever processed it.

    Args:
        dataset: the data set, whose length does not change.
        shuffle: whether the examples are shuffled, in another order in each epoch.
        seed: the seed of the order, the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.progress = Progress()
        self.indices: list[int] = []
        self.reset()

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.progress.epoch

    @property
    def processed_indices(self) -> set[int]:
        """The indices that are processed, without those that other ranks recorded by index since the last commit."""
        return set(self.progress.processed())

    @property
    def processed_num(self) -> int:
        """The number of indices that are processed."""
        return len(self.progress.processed())

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, in which nothing is processed yet.

        Call it at the end of the epoch before: at the beginning, an epoch that is continued would start over.
        """
        self.progress = self.progress._replace(epoch=epoch, before=frozenset(), order=(), positions=(), own=frozenset())
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that all ranks have processed a batch.

        Args:
            batch_idx: its number since the loader's iteration began, from 0.
            batch_size: the number of examples of a full batch of one rank.
        """
        start = batch_idx * batch_size * self.num_replicas
        stop = min(start + batch_size * self.num_replicas, self.total_size)
        positions = self.progress.positions
        if positions and positions[-1][1] == start:
            start, positions = positions[-1][0], positions[:-1]
        if stop > start:
            self.progress = self.progress._replace(positions=(*positions, (start, stop)))

    def record_indices(self, indices: Iterable[int]) -> None:
        """Record that this rank has processed these examples; the others learn of it when the state is committed."""
        self.progress = self.progress._replace(own=self.progress.own.union(indices), by_indices=True)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the indices of a batch of this rank."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the processed indices."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.progress.processed())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state, perhaps of another number of workers; Horovod's ``processed_num`` is read, too."""
        epoch = state_dict["epoch"]
        if "processed_indices" in state_dict:
            processed = state_dict["processed_indices"]
        else:
            processed = self._shuffled(epoch)[: state_dict["processed_num"]]
        self.progress = Progress(
            epoch=epoch, before=frozenset(processed), by_indices=state_dict.get("by_indices", self.progress.by_indices)
        )
        self.reset()

    def reset(self) -> None:
        """Divide the examples that are left among the workers that there are now."""
        self.num_replicas, self.rank = size(), rank()
        processed = self.progress.processed()
        self.remaining_indices = [index for index in self._shuffled(self.epoch) if index not in processed]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        order = tuple(itertools.islice(itertools.cycle(self.remaining_indices), self.total_size))
        self.progress = self.progress._replace(before=processed - self.progress.own, order=order, positions=())

    def _shuffled(self, epoch: int) -> list[int]:
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + epoch).shuffle(indices)
        return indices

    def __iter__(self) -> Iterator[int]:
        self.indices = list(self.progress.order[self.rank :: self.num_replicas])
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples

    # For the state.

    def restore(self, progress: Progress) -> None:
        """Return to what was recorded at a commit."""
        self.progress = progress
        self.reset()

    def gather(self) -> None:
        """Learn which indices the other ranks have recorded one by one; all ranks must call it."""
        if self.progress.by_indices:
            own: list[frozenset[int]] = allgather_object(self.progress.own, name="elastic.indices")
            self.progress = self.progress._replace(before=self.progress.before.union(*own), own=frozenset())

    def synchronize(self, root_rank: int) -> None:
        """Continue from the state of one rank and what each rank has recorded by index; all ranks must call it.

        After a failure each rank has returned to a commit of its own, perhaps not the same one: the state of one rank
        fits the model of that rank. What is recorded by index since then is empty after a failure.
        """
        own: list[frozenset[int]] = allgather_object(self.progress.own, name="elastic.own_indices")
        told = {**self.state_dict(), "by_indices": self.progress.by_indices}
        told = broadcast_object(told, root_rank, name="elastic.sampler")
        self.load_state_dict({**told, "processed_indices": frozenset(told["processed_indices"]).union(*own)})
