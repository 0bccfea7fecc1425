"""The same partition for any ``torch.utils.data.Dataset``: as a batch sampler, and as a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from rueda.data.stream import Batch, Ranked, Stream, batch_device
from rueda.data.transfer import Transfer
from rueda.errors import DataError
from rueda.world.seeds import seed_worker

_Key = tuple[int, int, int, int, str]  # epoch, position, local batch, seed, partition


class PartitionSampler(Stream, Sampler[list[int]]):
    """A batch sampler: ``DataLoader(dataset, batch_sampler=PartitionSampler(len(dataset), batch=32))``.

    It yields the indices of this worker's examples in each batch, according to :mod:`rueda.data.partition`, and moves
    on to the next epoch by itself. Its state counts the batches that were requested, and with ``num_workers > 0`` a
    DataLoader requests them in advance. For runs that are to be resumed, use :class:`DatasetLoader`, which counts the
    batches that it returned.

    >>> sampler = PartitionSampler(6, batch=2, seed=1)
    >>> list(sampler), list(sampler)
    ([[4, 3], [0, 2], [1, 5]], [[2, 0], [5, 4], [3, 1]])
    """

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        return super().__iter__()  # type: ignore[return-value]

    def _fetch(self, epoch: int, position: int, local_batch: int) -> Any:
        return self._indices(epoch, position, local_batch).tolist()


class DatasetLoader(Stream):
    """Iterates over batches ``(inputs, targets)`` of any map-style ``Dataset``, like :class:`rueda.data.Loader`.

    The examples are read one by one as ``dataset[i]``, which is slower than whole batches of :class:`Arrays` but works
    for any data.

    Args:
        dataset: a data set with a length whose ``dataset[i]`` is ``(input, target)``.
        batch: the local batch size, that of this worker.
        world: gives the rank and the number of workers; by default the current world.
        seed: seed of the order; the same on all workers.
        partition: ``shards`` or ``random``.
        remainder: ``drop`` or ``pad``.
        num_workers: number of processes that read batches in advance, as in DataLoader; for a GPU into pinned memory.
        device: device of the batches; by default that of the world.
        options: ``collate_fn`` and, if ``num_workers > 0``, other arguments of DataLoader.

    >>> squares = torch.utils.data.TensorDataset(torch.arange(4.0) ** 2, torch.arange(4))
    >>> [(inputs.tolist(), targets.tolist()) for inputs, targets in DatasetLoader(squares, batch=2)]
    [([4.0, 1.0], [2, 1]), ([9.0, 0.0], [3, 0])]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
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
        if not hasattr(dataset, "__len__"):
            do = "give it __len__ and __getitem__; an endless stream cannot be partitioned"
            raise DataError("dataset", expected="one with a length", got=type(dataset).__name__, do=do)
        super().__init__(len(dataset), batch, world=world, seed=seed, partition=partition, remainder=remainder)
        self.dataset, self.device = dataset, batch_device(world, device)
        self._num_workers, self._options = num_workers, options
        self._collate = options.get("collate_fn") or default_collate
        self._pins = options.pop("pin_memory", self.device is not None and self.device.type == "cuda")
        self._transfer = None if self.device is None or self.device.type == "cpu" else Transfer(self.device)
        self._seed_reading: tuple[int, Callable[[], int]] | None = None
        self._ahead: tuple[Iterator[_Key], Iterator[Any]] | None = None
        self._num_virtual_workers = 1
        self._reading_as: Callable[[int], AbstractContextManager[None]] = _alone

    def read_for_workers(
        self, num_virtual_workers: int, reading_as: Callable[[int], AbstractContextManager[None]]
    ) -> None:
        """Read the examples of a batch for several virtual workers, each within its own context.

        In this way a data set that draws random numbers draws the same ones as on real workers.

        Args:
            num_virtual_workers: number of virtual workers, which share the batch: each reads every n-th example.
            reading_as: returns the context in which the examples of a rank are read.
        """
        self._num_virtual_workers, self._reading_as = num_virtual_workers, reading_as

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

    def _read_ahead(self, key: _Key) -> tuple[Iterator[_Key], Iterator[Any]]:
        """Return the keys of the batches from ``key`` on, over all epochs, and the batches from reading processes."""
        seed, step = self._seed_reading if self._seed_reading is not None else (None, lambda: 0)
        batches = _Batches(self.dataset, self._collate, None if seed is None else (seed, self.rank))
        requests = ((self._indices(*each[:3]).tolist(), number) for number, each in enumerate(self._keys(key), step()))
        options = {name: value for name, value in self._options.items() if name != "collate_fn"}
        loader = DataLoader(
            batches, sampler=_Once(requests), batch_size=None, collate_fn=_unchanged, num_workers=self._num_workers,
            pin_memory=self._pins, **options,
        )  # fmt: skip
        return self._keys(key), iter(loader)

    def _keys(self, key: _Key) -> Iterator[_Key]:
        epoch, position, local_batch, seed, partition = key
        while True:
            while self._has_batch(position, local_batch):
                yield epoch, position, local_batch, seed, partition
                position += local_batch * self.size
            epoch, position = epoch + 1, 0

    def _fetch(self, epoch: int, position: int, local_batch: int) -> Batch:
        if self._num_workers > 0 and self._num_virtual_workers == 1:
            return self._send(self._next_ahead((epoch, position, local_batch, self.seed, self.partition)))
        indices = self._indices(epoch, position, local_batch).tolist()
        examples: list[Any] = [None] * len(indices)
        for reader in range(self._num_virtual_workers):
            with self._reading_as(reader):
                for place in range(reader, len(indices), self._num_virtual_workers):
                    examples[place] = self.dataset[indices[place]]
        return self._send(self._collate(examples))

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

    def _send(self, batch: Any) -> Batch:
        try:
            inputs, targets = batch
        except (TypeError, ValueError):
            expected, do = "(input, target) for each example", "return a pair from __getitem__"
            raise DataError("dataset", expected=expected, got=type(batch).__name__, do=do) from None
        if self._transfer is None:
            return inputs, targets
        inputs, targets = self._transfer(inputs, targets)
        return inputs, targets


class _Batches(Dataset[Any]):
    """Reads whole batches of a data set in another process: item ``(indices, step)`` is a batch."""

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any], seeds: tuple[int, int] | None
    ) -> None:
        self._dataset, self._collate, self._seeds = dataset, collate, seeds

    def __getitem__(self, request: tuple[list[int], int]) -> Any:
        indices, step = request
        if self._seeds is not None:
            seed_worker(*self._seeds, step)
        return self._collate([self._dataset[index] for index in indices])


class _Once(Sampler[Any]):
    """An endless sampler from an iterator, which is read once."""

    def __init__(self, requests: Iterator[Any]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return self._requests


def _unchanged(batch: Any) -> Any:
    return batch


def _alone(_: int) -> AbstractContextManager[None]:
    return nullcontext()
