"""A user's own torch ``DataLoader``, divided among the workers: :meth:`rueda.World.loader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_convert,
)
from torch.utils.data.distributed import DistributedSampler

from rueda.data.dataset_loader import DatasetLoader, read_examples
from rueda.data.iterable_loader import IterableLoader
from rueda.data.loader import Loader
from rueda.data.stream import Ranked, current_world
from rueda.errors import DataError
from rueda.world.seeds import derive


def share_dataloader(
    dataloader: DataLoader[Any],
    *,
    world: Ranked | None = None,
    seed: int = 0,
    batch: int | None = None,
    split_batch: bool = False,
    remainder: str | None = None,
    device: torch.device | str | None = None,
) -> Loader:
    """Return a loader of this worker's share of what a DataLoader yields.

    The data set, its transforms, ``collate_fn``, ``num_workers``, ``worker_init_fn``, ``prefetch_factor``, ``timeout``
    and ``pin_memory`` are kept. The batch size is that of one worker. The order is that of the DataLoader: shuffled
    anew in each epoch if it shuffles, that of its sampler if it has one of its own, which is asked on all workers with
    the same random numbers. A sampler that divides the data already (``DistributedSampler``) is left out. Of a batch
    sampler of its own, the workers take whole batches in turn. Without ``drop_last``, the rest of an epoch is divided
    evenly, so that on one worker it is the short batch that the DataLoader yields.

    Args:
        dataloader: the DataLoader.
        world: the workers; by default the current world.
        seed: seed of the order; the same on all workers.
        batch: the local batch size; by default that of the DataLoader.
        split_batch: whether the DataLoader's batch size is that of all workers together: each gets an equal part of it.
        remainder: ``drop``, ``pad`` or ``short``; by default ``drop`` with ``drop_last``, else ``short``.
        device: device of the batches; by default that of the world.

    >>> squares = DataLoader([n * n for n in range(5)], batch_size=2, shuffle=True)
    >>> [batch.tolist() for batch in share_dataloader(squares)]
    [[16, 4], [1, 9], [0]]
    """
    _check(dataloader)
    dataset, collate, batches = dataloader.dataset, dataloader.collate_fn, dataloader.batch_sampler
    size, sampler, drops = dataloader.batch_size, dataloader.sampler, dataloader.drop_last
    if type(batches) is BatchSampler:  # torch's own, which it makes itself unless it was given
        size, sampler, drops = batches.batch_size, batches.sampler, batches.drop_last
    options: dict[str, Any] = {"world": world, "seed": seed, "device": device, "num_workers": dataloader.num_workers}
    options |= {"remainder": remainder or ("drop" if drops else "short"), **_options(dataloader)}
    in_order: dict[str, Any] = {"shuffle": 0, "divide": "examples"}
    if size is None and split_batch:
        do = "let the sampler choose smaller batches"
        raise DataError("split_batch", expected="a DataLoader with a batch_size", got="batches of its own", do=do)
    if size is None and batches is not None:
        sampled = _Sampled(batches, seed)
        return IterableLoader(sampled, 1, collate_fn=_ReadBatch(dataset, collate), **in_order, **options)
    if size is None:
        size, collate = 1, _Single(collate)
    size = batch or (_part(size, world or current_world()) if split_batch else size)
    if isinstance(dataset, IterableDataset):
        return IterableLoader(dataset, size, shuffle=0, collate_fn=collate, **options)
    if (order := _order_of(sampler, dataset)) is not None:
        return DatasetLoader(dataset, size, partition=order, collate_fn=collate, **options)
    sampled = _Sampled(sampler, seed)
    return IterableLoader(sampled, size, collate_fn=_ReadExamples(dataset, collate), **in_order, **options)


def _part(batch: int, world: Ranked) -> int:
    """Return one worker's part of a global batch."""
    if batch % world.size:
        do = "choose another batch size or number of workers"
        raise DataError("batch_size", expected=f"a multiple of the {world.size} workers", got=batch, do=do)
    return batch // world.size


def _order_of(sampler: Any, dataset: Any) -> str | None:
    """Return the partition that does what one of torch's samplers does; None for others."""
    if type(sampler) is SequentialSampler or (type(sampler) is DistributedSampler and not sampler.shuffle):
        return "sequential"
    if type(sampler) is DistributedSampler:
        return "shards"
    if type(sampler) is RandomSampler and sampler.num_samples == len(dataset):
        return "random" if sampler.replacement else "shards"
    return None


def _check(dataloader: object) -> None:
    if not isinstance(dataloader, DataLoader):
        do = "use rueda.Loader(data, batch) for a data set"
        raise DataError("world.loader", expected="a torch DataLoader", got=type(dataloader).__name__, do=do)


def _options(dataloader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments that are passed on to the DataLoader that reads in advance."""
    chosen: dict[str, Any] = {"pin_memory": True} if dataloader.pin_memory else {}
    if dataloader.num_workers > 0:
        for name in ("prefetch_factor", "worker_init_fn", "timeout", "multiprocessing_context"):
            chosen[name] = getattr(dataloader, name)
    return chosen


class _Sampled(IterableDataset[Any]):
    """The indices, or lists of indices, that a sampler yields in each epoch: the same on all workers."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler, self._seed, self._epoch = sampler, seed, 0

    def __len__(self) -> int:
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler the epoch."""
        self._epoch = epoch
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        inner = getattr(self._sampler, "sampler", None)
        for each in (self._sampler, inner):
            generator = getattr(each, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(derive("sampler", self._seed, self._epoch))
        return iter(self._sampler)


class _ReadExamples:
    """Reads the examples of indices, and collates them."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, indices: list[Any]) -> Any:
        return self._collate(read_examples(self._dataset, indices))


class _ReadBatch(_ReadExamples):
    """Reads the one batch that a batch sampler chose."""

    def __call__(self, batches: list[list[Any]]) -> Any:
        [indices] = batches
        return super().__call__(indices)


class _Single:
    """Takes the one batch that a data set yields, as a DataLoader with ``batch_size=None``."""

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self._convert = convert or default_convert

    def __call__(self, batches: list[Any]) -> Any:
        [batch] = batches
        return self._convert(batch)
