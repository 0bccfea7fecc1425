"""The same partition for any ``torch.utils.data.Dataset``: as a batch sampler, and as a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from rueda.data.stream import Batch, Ranked, Stream, batch_device
from rueda.errors import DataError


class PartitionSampler(Stream, Sampler[list[int]]):
    """A batch sampler: ``DataLoader(dataset, batch_sampler=PartitionSampler(len(dataset), batch=32))``.

    It gives this worker's indices of each batch, in the partition of :mod:`rueda.data.partition`, and goes on to the
    next epoch by itself. Its state counts the batches that were asked for: with ``num_workers > 0`` a DataLoader asks
    in advance, so resume through :class:`DatasetLoader`, which counts those that were handed out.

    >>> sampler = PartitionSampler(6, batch=2, seed=1)
    >>> list(sampler), list(sampler)
    ([[4, 3], [0, 2], [1, 5]], [[2, 0], [5, 4], [3, 1]])
    """

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        return super().__iter__()  # type: ignore[return-value]

    def _fetch(self, epoch: int, position: int, local_batch: int) -> Any:
        return self._indices(epoch, position, local_batch).tolist()


class DatasetLoader(Stream):
    """Batches ``(inputs, targets)`` of any map-style ``Dataset``, with the interface of :class:`rueda.data.Loader`.

    The examples come one by one from ``dataset[i]``, through torch's DataLoader: slower than whole batches from
    :class:`Arrays`, but for any data.

    Args:
        dataset: has ``len()`` and ``dataset[i] -> (input, target)``.
        batch: examples that this worker takes at each step.
        world: which worker this is; by default the current world.
        seed: of the order; the same on all workers.
        partition: ``shards`` or ``random``.
        remainder: ``drop`` or ``pad``.
        num_workers: processes that read examples in advance.
        device: where batches are wanted; by default where the world computes, if it says so.
        options: ``collate_fn``, and with processes whatever else DataLoader takes.

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
            raise DataError(
                "dataset",
                expected="one with a length",
                got=type(dataset).__name__,
                do="give it __len__ and __getitem__; an endless stream cannot be partitioned",
            )
        super().__init__(len(dataset), batch, world=world, seed=seed, partition=partition, remainder=remainder)
        self.dataset, self.device = dataset, batch_device(world, device)
        self._num_workers, self._options = num_workers, options
        self._collate = options.get("collate_fn") or default_collate
        self._num_readers = 1
        self._as_reader: Callable[[int], AbstractContextManager[None]] = _alone

    def read_as(self, num_readers: int, as_reader: Callable[[int], AbstractContextManager[None]]) -> None:
        """Read for several virtual workers: each reads its own examples of the batch, every n-th, within its context.

        So a data set that draws random numbers draws what it would for as many real workers.

        Args:
            num_readers: how many virtual workers there are; the batch is that of all of them.
            as_reader: from a worker's number to a context in which its examples are read.
        """
        self._num_readers, self._as_reader = num_readers, as_reader

    def __iter__(self) -> Iterator[Batch]:
        if self._num_workers == 0:
            yield from super().__iter__()
            return
        while self._has_batch(self._position, self._batch):
            local_batch, epoch, place = self._batch, self._epoch, self._position
            for batch in self._read_ahead():
                self._position = place = place + local_batch * self.size
                yield self._send(batch)
                if (self._batch, self._epoch, self._position) != (local_batch, epoch, place):
                    break  # somebody changed the batch or moved the stream: what was read ahead is void
        self._epoch, self._position = self._epoch + 1, 0

    def _read_ahead(self) -> Iterator[Any]:
        """Let torch's processes read the rest of the epoch."""
        batches = range(self._position, self.num_examples, self._batch * self.size)
        wanted = [
            self._indices(self._epoch, position, self._batch).tolist()
            for position in batches
            if self._has_batch(position, self._batch)
        ]
        yield from DataLoader(self.dataset, batch_sampler=wanted, num_workers=self._num_workers, **self._options)

    def _fetch(self, epoch: int, position: int, local_batch: int) -> Batch:
        indices = self._indices(epoch, position, local_batch).tolist()
        examples: list[Any] = [None] * len(indices)
        for reader in range(self._num_readers):
            with self._as_reader(reader):
                for place in range(reader, len(indices), self._num_readers):
                    examples[place] = self.dataset[indices[place]]
        return self._send(self._collate(examples))

    def _send(self, batch: Any) -> Batch:
        try:
            inputs, targets = batch
        except (TypeError, ValueError):
            raise DataError(
                "dataset",
                expected="(input, target) for each example",
                got=type(batch).__name__,
                do="return a pair from __getitem__",
            ) from None
        if self.device is None or self.device.type == "cpu":
            return inputs, targets
        return inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)


def _alone(_: int) -> AbstractContextManager[None]:
    return nullcontext()
