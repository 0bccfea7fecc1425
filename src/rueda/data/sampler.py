"""The same partition as a batch sampler of torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from rueda.data.stream import Stream


class PartitionSampler(Stream, Sampler[list[int]]):
    """A batch sampler: ``DataLoader(dataset, batch_sampler=PartitionSampler(len(dataset), batch=32))``.

    It yields the indices of this worker's examples in each batch, according to :mod:`rueda.data.partition`, and moves
    on to the next epoch by itself. Its state counts the batches that were requested, and with ``num_workers > 0`` a
    DataLoader requests them in advance. For runs that are to be resumed, use :class:`DatasetLoader`, which counts the
    batches that it returned.

    Args:
        num_examples: the length of the data set.
        batch: the local batch size, that of this worker.
        world: gives the rank and the number of workers; by default the current world.
        seed: seed of the order; the same on all workers.
        partition: ``shards``, ``random`` or ``sequential``.
        remainder: ``drop``, ``pad`` or ``short``.

    >>> sampler = PartitionSampler(6, batch=2, seed=1)
    >>> list(sampler), list(sampler)
    ([[4, 3], [0, 2], [1, 5]], [[2, 0], [5, 4], [3, 1]])
    """

    def __iter__(self) -> Iterator[list[int]]:
        return super().__iter__()

    def _fetch(self, epoch: int, position: int, total: int) -> Any:
        return self._indices(epoch, position, total).tolist()
