"""The ``DataLoader``: it draws the serial script's batches, and gives this worker its share of them.

The script's ``DataLoader`` is not changed. When the script iterates over it, torch makes the iterator from a copy of
it, whose batch sampler, data set and ``collate_fn`` are those of :mod:`.examples`. The sampler runs on every worker
and draws the same random numbers as in the serial script: every worker knows all indices of every batch, and torch's
generator is afterwards where the serial script's would be.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe

from rueda.check.patches import Patches
from rueda.check.scale.batches import BatchTracker, Drawing, Site, call_site
from rueda.check.scale.examples import Batch, Indices, SharedCollate, SharedDataset
from rueda.check.scale.generator import GeneratorWatch
from rueda.check.scale.notes import Notes
from rueda.world import World

_SITE = "_rueda_site"


class SharedLoaders:
    """Lets every ``DataLoader`` of the script share out its batches.

    Args:
        world: the workers.
        tracker: learns of every batch.
        generator: torch's generator, which must be in the same state on all workers when a batch is drawn.
        notes: where the user is told.
        load: see :class:`rueda.check.scale.options.ScaleOptions`.
        num_merged: how many of the script's batches are taken as one, in weak scaling.
    """

    def __init__(
        self,
        world: World,
        tracker: BatchTracker,
        generator: GeneratorWatch,
        notes: Notes,
        load: str,
        num_merged: int = 1,
    ) -> None:
        self._world, self._tracker, self._notes, self._load = world, tracker, notes, load
        self._num_merged = num_merged
        self._generator = generator

    def install(self, patches: Patches) -> None:
        """Replace what makes the iterator of a ``DataLoader``."""
        patches.replace(DataLoader, "__init__", self._noting_its_line)
        patches.replace(DataLoader, "_get_iterator", self._sharing)

    def _noting_its_line(self, original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            loader.__dict__.setdefault(_SITE, call_site())
            original(loader, *args, **kwargs)

        return __init__

    def _sharing(self, original: Any) -> Any:
        def _get_iterator(loader: Any) -> Any:
            self._notes.check()
            site = loader.__dict__.get(_SITE, ())
            self._check(loader)
            self._generator.leave_batch()
            if not loader._auto_collation:
                self._notes.say(
                    "a DataLoader has batch_size=None: its data set makes the batches, which are not shared out"
                )
                return original(loader)
            return SharedIterator(original, self._tracker, self._generator, self._view(loader, site), site)

        return _get_iterator

    def _check(self, loader: Any) -> None:
        if isinstance(loader.dataset, IterDataPipe):
            self._notes.refuse("a DataPipe divides itself among workers in its own way; use a Dataset")
        if loader.num_workers and not getattr(loader, "in_order", True):
            self._notes.refuse("a DataLoader with in_order=False gives every worker another order; remove in_order")

    def _view(self, loader: Any, site: Site) -> Any:
        """Return a copy of a loader that is made for the workers; ``DataLoader`` forbids setting these attributes."""
        rank, size = self._world.rank, self._world.size
        view = copy.copy(loader)
        collate = SharedCollate(loader.collate_fn, rank, size)
        sampler = SharedSampler(loader.batch_sampler, self._tracker, self._num_merged)
        view.__dict__.update(batch_sampler=sampler, collate_fn=collate)
        if not isinstance(loader.dataset, IterableDataset):
            draws = self._tracker.memory(site).draws
            view.__dict__["dataset"] = SharedDataset(loader.dataset, rank, size, self._load, draws)
        return view


class SharedSampler:
    """The script's batch sampler, whose batches say whether they are shared out.

    Args:
        sampler: the script's own, or torch's.
        tracker: learns of the indices.
        num_merged: how many of its batches are taken as one where they are shared out.
    """

    def __init__(self, sampler: Any, tracker: BatchTracker, num_merged: int) -> None:
        self._sampler, self._tracker, self._num_merged = sampler, tracker, num_merged
        self.drawing: Drawing | None = None

    def __iter__(self) -> Iterator[Indices]:
        drawing = self.drawing
        assert drawing is not None
        batches = iter(self._sampler)
        for batch in batches:
            indices, shared = list(batch), drawing.may_share and drawing.memory.is_shared
            for more in islice(batches, self._num_merged - 1 if shared else 0):
                indices += more
            if indices and indices[0] is not None:  # an iterable data set has none
                self._tracker.drew_indices(indices)
            yield Indices(indices, shared=shared)

    def __len__(self) -> int:
        return len(self._sampler)


class SharedIterator:
    """The iterator of a shared loader: it passes the data on, and tells the tracker which share they are.

    Args:
        make: makes torch's iterator.
        tracker: learns of every batch.
        generator: torch's generator.
        view: the copy of the loader that torch's iterator is made from.
        site: the line of the script that created the loader.
    """

    def __init__(self, make: Any, tracker: BatchTracker, generator: GeneratorWatch, view: Any, site: Site) -> None:
        self._tracker, self._generator, self._view, self._site = tracker, generator, view, site
        self._drawing = self._begin()
        with tracker.suspended():
            self._inner = make(view)

    def _begin(self) -> Drawing:
        self._drawing = self._view.batch_sampler.drawing = self._tracker.begin(self._site)
        return self._drawing

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin another pass, with the processes of the last one (``persistent_workers``)."""
        self._generator.leave_batch()
        self._begin()
        with self._tracker.suspended():
            self._inner._reset(self._view, first_iter)

    def __iter__(self) -> SharedIterator:
        return self

    def __next__(self) -> Any:
        tracker = self._tracker
        self._generator.leave_batch()
        try:
            with tracker.suspended():
                batch: Batch = next(self._inner)
        except StopIteration:
            tracker.ended(self._drawing)
            raise
        memory = self._drawing.memory
        memory.draws = bool(memory.draws) or batch.drew
        if batch.surprised:
            tracker.notes.refuse(
                "the data set has begun to draw random numbers after batches without any, so the workers' generators "
                "differ now; give --load whole"
            )
        self._count(batch)
        tracker.yielded(self._drawing, batch.share)
        self._generator.enter_batch(shared=batch.share is not None)
        return batch.data

    def _count(self, batch: Batch) -> None:
        """Note how many of the script's batches this one holds, and how far the epoch has come."""
        sampler = self._view.batch_sampler
        each = getattr(self._view, "batch_size", None) or getattr(sampler._sampler, "batch_size", None)
        merged = sampler._num_merged if each is None or batch.share is None else math.ceil(batch.share.whole / each)
        self._tracker.num_merged = 1 if batch.share is None else merged
        if self._drawing.may_share:
            with suppress(TypeError):  # a sampler without a length
                self._tracker.epochs += self._tracker.num_merged / len(sampler)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)
