"""What a ``DataLoader`` is given instead of the script's data set, ``collate_fn`` and indices.

All three are pickled where the loader starts its processes with ``spawn``, so they hold no more than they need. A batch
of indices carries the share that this worker is to keep. A map-style data set loads only the examples of that share,
unless it draws random numbers while it loads (augmentation): then all examples of the batch are loaded in their order,
so that every draw is the one that the serial script makes, and those of the share are kept. An iterable data set is
read to the end by every worker, since nothing says how it could be divided; the share of each batch is kept.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy
import torch

from rueda.check.scale.share import Share, share_of
from rueda.world.seeds import seed_worker


class Indices(list[Any]):
    """The indices of an entire batch, and whether this worker keeps only its share of the examples."""

    latest: ClassVar[Indices | None] = None
    """the batch that was iterated over last: a loader does so before it collates an iterable data set's batch"""

    def __init__(self, indices: Iterable[Any], shared: bool) -> None:
        super().__init__(indices)
        self.shared = shared

    def __iter__(self) -> Iterator[Any]:
        Indices.latest = self
        return super().__iter__()

    def __reduce__(self) -> Any:
        return Indices, (self[:], self.shared)


class Examples(list[Any]):
    """The examples of a batch that were kept."""

    share: Share | None = None
    drew: bool = False
    surprised: bool = False


class Batch(NamedTuple):
    """A collated batch on its way from the loader to the script."""

    data: Any
    share: Share | None
    """None: the entire batch"""
    drew: bool
    """whether the data set drew random numbers while it loaded the examples"""
    surprised: bool
    """whether it did so although it had not before, so that only the share's numbers were drawn"""


class SharedDataset:
    """A map-style data set that loads this worker's share of a batch.

    Args:
        dataset: the script's data set.
        rank: the rank of this worker.
        size: the number of workers.
        load: see :class:`rueda.check.scale.options.ScaleOptions`.
        draws: whether the data set is known to draw random numbers; None if not known.
    """

    def __init__(self, dataset: Any, rank: int, size: int, load: str, draws: bool | None) -> None:
        self.__dict__.update(_dataset=dataset, _rank=rank, _size=size, _load=load, _draws=draws)

    def __getitems__(self, indices: Any) -> Examples:
        shared = isinstance(indices, Indices) and indices.shared
        share = share_of(len(indices), self._rank, self._size) if shared else None
        plain = indices[:]
        before = random_states()
        if share is None or self._load == "whole" or (self._load == "auto" and self._draws is not False):
            loaded = self._examples(plain)
            kept = loaded if share is None else loaded[share.low : share.low + share.rows]
            drew, surprised = random_states() != before, False
        else:
            part = plain[share.low : share.low + share.rows]
            if self._load == "share" and self._draws:
                kept, drew, surprised = self._with_own_draws(part), True, False
            else:
                kept = self._examples(part)
                drew = surprised = random_states() != before
        self.__dict__["_draws"] = bool(self._draws) or drew
        result = Examples(kept)
        result.share, result.drew, result.surprised = share, drew, surprised
        return result

    def _examples(self, indices: list[Any]) -> list[Any]:
        together = getattr(self._dataset, "__getitems__", None)
        return list(together(indices)) if together else [self._dataset[index] for index in indices]

    def _with_own_draws(self, indices: list[Any]) -> list[Any]:
        """Load examples with random numbers of this rank's own, and leave the generators as they were."""
        states = (torch.get_rng_state(), random.getstate(), numpy.random.get_state())
        seed_worker(zlib.crc32(states[0].numpy().tobytes()), self._rank, zlib.crc32(repr(indices).encode()))
        try:
            return self._examples(indices)
        finally:
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            numpy.random.set_state(states[2])

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)  # as a worker_init_fn does


class SharedCollate:
    """Collates the examples that were kept, and says which they are.

    Args:
        collate: the script's ``collate_fn``.
        rank: the rank of this worker.
        size: the number of workers.
    """

    def __init__(self, collate: Callable[[Any], Any], rank: int, size: int) -> None:
        self._collate, self._rank, self._size = collate, rank, size

    def __call__(self, examples: Any) -> Batch:
        """Return the collated share, or the entire batch."""
        if isinstance(examples, Examples):
            return Batch(self._collate(examples[:]), examples.share, examples.drew, examples.surprised)
        share = None
        if Indices.latest is not None and Indices.latest.shared and examples:
            share = share_of(len(examples), self._rank, self._size)
            examples = examples[share.low : share.low + share.rows]
        return Batch(self._collate(examples), share, False, False)


def random_states() -> tuple[bytes, Any, bytes]:
    """Return the states of the generators of torch, Python and NumPy, for a comparison."""
    numbers: Any = numpy.random.get_state(legacy=False)
    numpy_state = numbers["state"]["key"].tobytes() + bytes(str(numbers["state"]["pos"]), "ascii")
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state
