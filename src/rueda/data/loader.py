"""The loader of a training, for any data: ``rueda.Loader(data, batch)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from rueda.data.arrays import Arrays
from rueda.data.augment import Augmentation
from rueda.data.stream import Batch, Ranked, Stream
from rueda.errors import DataError


class Loader(Stream):
    """Iterates over this worker's batches of any data; each pass is an epoch, shuffled anew.

    What it returns depends on the data:

    ===========================================================  ==============================================
    ``rueda.Arrays``                                             an :class:`rueda.data.array_loader.ArrayLoader`,
                                                                 which makes whole batches ``(inputs, targets)``
    anything with a length and ``data[i]``: a torch ``Dataset``  a :class:`DatasetLoader`, which reads example by
                                                                 example and collates them
    anything to iterate over: a torch ``IterableDataset``        an
                                                                 :class:`rueda.data.iterable_loader.IterableLoader`,
                                                                 which divides one stream among the workers
    ===========================================================  ==============================================

    Args:
        data: the examples.
        batch: the local batch size, that of *this worker*; the global batch size is ``batch * world.size``.
        world: gives the rank and the number of workers; by default the current world.
        seed: seed of the order and the augmentation; the same on all workers.
        partition: ``shards`` or ``random``, see :mod:`rueda.data.partition`.
        remainder: what becomes of an incomplete last global batch: ``drop`` omits it; ``pad`` fills it with examples
            from the start of the epoch; ``short`` divides it evenly, so that at most one example a worker is repeated.
        device: device of the batches; by default that of the world or, for arrays, that of the data.
        augment: of arrays: augmentations, applied in this order; see :mod:`rueda.data.augment`.
        prefetch: of arrays: number of batches that a thread prepares in advance; by default 2 for batches on a GPU,
            else 0, because on a CPU the thread would compete with the training.
        dtype: of arrays: dtype of the inputs; integer inputs other than ``uint8`` keep theirs.
        num_workers: of other data: number of processes that read batches in advance, as in torch's DataLoader; for a
            GPU into pinned memory.
        collate_fn: of other data: makes a batch from a list of examples; by default torch's ``default_collate``.
        options: of other data: further arguments of DataLoader, and for a stream those of
            :class:`rueda.data.iterable_loader.IterableLoader`: ``shuffle``, ``divide``, ``num_examples``.

    >>> data = Arrays(torch.arange(6.0).reshape(6, 1), torch.arange(6))
    >>> loader = Loader(data, batch=2, seed=1)
    >>> [targets.tolist() for inputs, targets in loader], [targets.tolist() for inputs, targets in loader]
    ([[4, 3], [0, 2], [1, 5]], [[2, 0], [5, 4], [3, 1]])
    >>> loader.state_dict()
    {'epoch': 2, 'position': 0, 'seed': 1, 'partition': 'shards', 'num_examples': 6}
    >>> [words for words in Loader([{"text": text} for text in "abcdef"], batch=3, seed=1)]
    [{'text': ['e', 'd', 'a']}, {'text': ['c', 'b', 'f']}]
    """

    def __new__(
        cls,
        data: Any = None,
        batch: int = 1,
        *,
        world: Ranked | None = None,
        seed: int = 0,
        partition: str = "shards",
        remainder: str = "drop",
        device: torch.device | str | None = None,
        augment: Sequence[Augmentation] = (),
        prefetch: int | None = None,
        dtype: torch.dtype = torch.float32,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> Loader:
        """Make the loader that fits the data, whose ``__init__`` takes the arguments."""
        return object.__new__(_kind(data) if cls is Loader else cls)

    def close(self) -> None:
        """End what prepares batches in advance; the next batch starts it again."""

    def _fetch(self, epoch: int, position: int, total: int) -> Batch:
        raise NotImplementedError


def is_stream(data: object) -> bool:
    """Return whether data can only be iterated over, not indexed."""
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    return hasattr(data, "__iter__") and not indexed


def _kind(data: object) -> type[Loader]:
    """Return the loader for some data; the imports are delayed because the loaders build on this module."""
    if isinstance(data, DataLoader):
        do = "use world.loader(dataloader), which keeps its batch size, collate and processes"
        raise DataError("data", expected="a data set", got="a DataLoader", do=do)
    if isinstance(data, Arrays):
        from rueda.data.array_loader import ArrayLoader

        return ArrayLoader
    if is_stream(data):
        from rueda.data.iterable_loader import IterableLoader

        return IterableLoader
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        from rueda.data.dataset_loader import DatasetLoader

        return DatasetLoader
    expected, do = "rueda.Arrays, a torch Dataset, or something to iterate over", "wrap it in one of them"
    raise DataError("data", expected=expected, got=type(data).__name__, do=do)
