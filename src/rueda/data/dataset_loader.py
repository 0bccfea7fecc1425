"""Batches of any map-style data set, read example by example, in this process or in others."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from rueda.data.collated_loader import Collate, CollatedLoader
from rueda.data.partition import Indices
from rueda.data.stream import Batch, Ranked, Stream, batch_device
from rueda.errors import DataError
from rueda.world.seeds import seed_worker

_Key = tuple[int, int, int, int, str, int | None]  # epoch, position, global batch, seed, partition, micro-batch
_Shares = list[list[list[int]]]  # of each virtual worker: the indices of each micro-batch


class DatasetLoader(CollatedLoader):
    """Iterates over the batches of anything with a length and ``dataset[i]``; see :class:`rueda.Loader`.

    The examples are read one by one as ``dataset[i]``, or together as ``dataset.__getitems__(indices)`` where the data
    set has it, as in torch's DataLoader. A batch is what ``collate_fn`` makes of them: any nest of tensors. A data set
    may have its own order: ``dataset.order(seed, epoch)`` returns the indices of an epoch, the same on all workers.

    Args:
        dataset: the data set.
        batch: the local batch size, that of this worker.
        world: gives the rank and the number of workers; by default the current world.
        seed: seed of the order; the same on all workers.
        partition: ``shards``, ``random`` or ``sequential``.
        remainder: ``drop``, ``pad`` or ``short``.
        num_workers: number of processes that read batches in advance, as in DataLoader; for a GPU into pinned memory.
        device: device of the batches; by default that of the world.
        options: ``collate_fn`` and, if ``num_workers > 0``, other arguments of DataLoader.

    >>> squares = torch.utils.data.TensorDataset(torch.arange(4.0) ** 2, torch.arange(4))
    >>> [(inputs.tolist(), targets.tolist()) for inputs, targets in DatasetLoader(squares, batch=2)]
    [([4.0, 1.0], [2, 1]), ([9.0, 0.0], [3, 0])]
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        world: Ranked | None = None,
        seed: int = 0,
        partition: str = "shards",
        remainder: str = "drop",
        num_workers: int = 0,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            do = "give it __len__ and __getitem__, or use rueda.Loader, which takes streams too"
            raise DataError("dataset", expected="one with a length and an index", got=type(dataset).__name__, do=do)
        self.dataset, self.device = dataset, batch_device(world, device)
        Stream.__init__(self, len(dataset), batch, world=world, seed=seed, partition=partition, remainder=remainder)
        self._prepare_reading(num_workers, options)
        self._seed_reading: tuple[int, Callable[[], int]] | None = None
        self._ahead: tuple[Iterator[_Key], Iterator[Any]] | None = None

    def seed_reading(self, seed: int, step: Callable[[], int]) -> None:
        """Seed the processes that read in advance as a worker seeds itself before it reads a batch.

        In this way a data set that draws random numbers draws the same ones, whether it is read in advance or not.

        Args:
            seed: the seed of the training.
            step: returns the number of the update for which the next batch is used.
        """
        self._seed_reading = seed, step

    def close(self) -> None:
        """End the reading processes; the next batch starts new ones."""
        self._ahead = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the next unseen example of a saved state, which may come from another number of workers."""
        self.close()  # what was read in advance belongs to the old position
        super().load_state_dict(state)

    def _next(self, fetch: Callable[[int, int, int], Any], local_batch: int | None) -> Any:
        began, epoch = time.perf_counter(), self._epoch
        found = super()._next(fetch, local_batch)
        if found is not None:
            self._waiting.add(epoch, began)
        return found

    def _fetch(self, epoch: int, position: int, total: int) -> Batch:
        if self._num_workers > 0 and self._num_virtual_workers == 1:
            return self._read((epoch, position, total, self.seed, self.partition, None))[0][0]
        indices = self._indices(epoch, position, total).tolist()
        examples: list[Any] = [None] * len(indices)
        for rank in range(self._num_virtual_workers):
            with self._reading_as(rank):
                share = slice(rank, None, self._num_virtual_workers)
                examples[share] = read_examples(self.dataset, indices[share])
        return self._send(self._collate(examples))

    def _fetch_parts(self, micro_batch: int, epoch: int, position: int, total: int) -> list[list[Batch]]:
        return self._read((epoch, position, total, self.seed, self.partition, micro_batch))

    def _read(self, key: _Key) -> list[list[Batch]]:
        """Read the micro-batches of each virtual worker."""
        if self._num_workers > 0:
            return [[self._send(part) for part in parts] for parts in self._next_ahead(key)]
        found = []
        for rank, share in enumerate(self._shares(key)):
            with self._reading_as(rank):
                found.append([self._send(self._collate(read_examples(self.dataset, part))) for part in share])
        return found

    def _shares(self, key: _Key) -> _Shares:
        epoch, position, total, _, _, micro_batch = key
        indices = self._indices(epoch, position, total).tolist()
        shares = [indices[rank :: self._num_virtual_workers] for rank in range(self._num_virtual_workers)]
        step = micro_batch or len(indices)
        return [[share[start : start + step] for start in range(0, len(share), step)] for share in shares]

    def _order_of(self, epoch: int) -> Indices:
        own = getattr(self.dataset, "order", None)
        if own is None or self.partition != "shards":
            return super()._order_of(epoch)
        key = (epoch, self.seed, self.partition)
        if self._order[0] != key:
            self._order = (key, own(self.seed, epoch))
        return self._order[1]

    # Reading in advance.

    def _next_ahead(self, key: _Key) -> Any:
        """Return a batch that was read in advance; begin again if it is not the one that was expected."""
        if self._ahead is None or next(self._ahead[0]) != key:
            self._ahead = self._read_ahead(key)
            next(self._ahead[0])
        try:
            return next(self._ahead[1])
        except BaseException:  # also Ctrl-C: what is on its way is not for the next call
            self.close()
            raise

    def _read_ahead(self, key: _Key) -> tuple[Iterator[_Key], Iterator[Any]]:
        """Return the keys of the batches from ``key`` on, over all epochs, and the batches from reading processes."""
        seed, step = self._seed_reading if self._seed_reading is not None else (None, lambda: 0)
        batches = BatchReader(self.dataset, self._collate, None if seed is None else (seed, self.rank))
        # A proxy: in a reference cycle, the processes would live on until a garbage collection, which may happen in the
        # very thread that has to tell them to end; then they are waited for in vain, 5 seconds each.
        me: DatasetLoader = weakref.proxy(self)
        requests = ((me._shares(each), number) for number, each in enumerate(DatasetLoader._keys(me, key), step()))
        loader = DataLoader(
            batches, sampler=Requests(requests), batch_size=None, collate_fn=unchanged, num_workers=self._num_workers,
            pin_memory=self._pins, **self._options,
        )  # fmt: skip
        return DatasetLoader._keys(me, key), iter(loader)

    def _keys(self, key: _Key) -> Iterator[_Key]:
        epoch, position, total, *rest = key
        while True:
            while self._has_batch(position, total):
                shortened = self._shortened(position, total)
                yield (epoch, position, shortened, *rest)  # type: ignore[misc]
                position += shortened
            epoch, position = epoch + 1, 0


def read_examples(dataset: Any, indices: list[int]) -> list[Any]:
    """Read examples by their indices, together where the data set can do it, as torch's DataLoader does.

    >>> read_examples("abc", [2, 0])
    ['c', 'a']
    """
    together = getattr(dataset, "__getitems__", None)
    return list(together(indices)) if together is not None else [dataset[index] for index in indices]


class BatchReader(Dataset[Any]):
    """Reads batches of a data set in another process: item ``(shares, step)`` has the batches of these indices."""

    def __init__(self, dataset: Any, collate: Collate, seeds: tuple[int, int] | None) -> None:
        self._dataset, self._collate, self._seeds = dataset, collate, seeds

    def __getitem__(self, request: tuple[_Shares, int]) -> list[list[Any]]:
        shares, step = request
        found = []
        for virtual_rank, share in enumerate(shares):
            if self._seeds is not None:
                seed, rank = self._seeds
                seed_worker(seed, rank + virtual_rank, step)
            found.append([self._collate(read_examples(self._dataset, part)) for part in share])
        return found


class Requests(Sampler[Any]):
    """An endless sampler from an iterator, which is read once."""

    def __init__(self, requests: Iterator[Any]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return self._requests


def unchanged(batch: Any) -> Any:
    """Return the batch: a ``collate_fn`` for batches that are collated already."""
    return batch
