"""DataLoaders: which examples each worker reads, in which order, and whether the loop over them trains or evaluates.

The indices come from the sampler, in the main process, so they are seen for any number of loader processes; through
``Subset`` they are followed to the data set below. What an index means may differ between workers (each may have a
part of the data as a data set of its own), so the contents of the first batches are digested, too.
"""

from __future__ import annotations

import base64
import sys
import time
import zlib
from array import array
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data._utils import fetch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.digest import VALUES, digest, generators, is_plain, num_rows, rows
from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import is_users, place
from rueda.check.patches import Patches

_BATCHES = 8  # of an epoch whose contents are digested
_EPOCHS = 4  # of a loader that are noted with their indices
_LOADERS = 16  # made at one place that are noted: a script may make one for each epoch
_INDICES = 2_000_000  # of an epoch that are kept at most


class LoaderWatch:
    """Notes the epochs of every DataLoader.

    Args:
        journal: where they are noted.
        counters: what has happened so far.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self._journal, self._counters = journal, counters
        self._numbers: dict[str, int] = {}
        self._open: dict[int, _Epoch] = {}
        self._made: dict[int, _Made] = {}  # by the identity of the data set
        self._evaluated: list[_Epoch] = []
        self._beginning: _Epoch | None = None

    def install(self, patches: Patches) -> None:
        """Replace the functions of torch's loader that make an iterator and give a batch."""
        patches.replace(DataLoader, "__init__", self._making)
        patches.replace(DataLoader, "__iter__", self._iterating)
        patches.replace(_BaseDataLoaderIter, "__next__", self._giving)
        patches.replace(_BaseDataLoaderIter, "_next_index", self._indexing)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            patches.replace(kind, "fetch", self._fetching)
        self._journal.on_finish(self._finish)

    def _making(self, original: Any) -> Any:
        def make(loader: Any, *args: Any, **options: Any) -> None:
            original(loader, *args, **options)
            by_user = is_users(sys._getframe(1).f_code.co_filename)
            with self._journal.careful:
                where, before = place(), self._made.get(id(loader.dataset))
                if before is not None and not by_user:
                    where = before.where  # a library makes one from the user's
                size = loader.batch_size or (before.batch_size if before is not None else None)
                made = self._made[id(loader.dataset)] = _Made(where, size, loader.dataset)
                number = self._numbers[where] = self._numbers.get(where, -1) + 1
                epochs = 0 if number < _LOADERS else _EPOCHS
                vars(loader)["_rueda_check"] = {"name": f"{where}#{number}", "made": made, "epochs": epochs}

        return make

    def _iterating(self, original: Any) -> Any:
        def iterate(loader: Any) -> Any:
            known = vars(loader).get("_rueda_check")
            if known is None or known["epochs"] >= _EPOCHS:
                return original(loader)
            with self._journal.careful:
                self.settle()
                self._beginning = _Epoch(loader, known, self._counters)
            epoch = self._beginning
            if epoch is None:
                return original(loader)
            try:
                iterator = original(loader)  # loader processes are given their first indices here
            finally:
                self._beginning = None
            with self._journal.careful:
                self._close(id(iterator), complete=False)  # an iterator of persistent workers begins anew
            self._open[id(iterator)] = epoch
            epoch.iterator = iterator  # so that its number is not used for another one
            known["epochs"] += 1
            return iterator

        return iterate

    def _indexing(self, original: Any) -> Any:
        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            epoch = self._beginning or self._open.get(id(iterator))
            if epoch is not None and not epoch.is_stream:
                with self._journal.careful:
                    epoch.add_indices(index)
            return index

        return next_index

    def _giving(self, original: Any) -> Any:
        def give(iterator: Any) -> Any:
            epoch = self._open.get(id(iterator))
            began = time.perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                with self._journal.careful:
                    self._close(id(iterator), complete=True)
                raise
            self._counters.loading += time.perf_counter() - began
            self._counters.batches += 1
            if epoch is not None:
                with self._journal.careful:
                    self._counters.rows = num_rows(batch)
                    epoch.add_batch(batch)
            return batch

        return give

    def _fetching(self, original: Any) -> Any:
        """Note whether examples are drawn at random, such as by an augmentation, and from which states."""
        seen = 0

        def fetch_batch(fetcher: Any, index: Any) -> Any:
            nonlocal seen
            if seen >= _BATCHES:
                return original(fetcher, index)
            seen += 1
            before: dict[str, str] = {}
            with self._journal.careful:
                before = generators()
            batch = original(fetcher, index)
            with self._journal.careful:
                after = generators()
                drawn = {name: state for name, state in before.items() if after.get(name) != state}
                if drawn:
                    self._journal.note("augmentation", number=seen, states=drawn, made=self._counters.loader)
            return batch

        return fetch_batch

    def _close(self, key: int, *, complete: bool) -> None:
        epoch = self._open.pop(key, None)
        if epoch is None:
            return
        epoch.is_complete = complete
        if epoch.steps or not complete:
            self._journal.note("epoch", **epoch.as_record())
        else:
            self._evaluated.append(epoch)

    def settle(self) -> None:
        """Note the evaluations that have ended: what follows next is no longer a part of them."""
        for epoch in self._evaluated:
            self._journal.note("epoch", **epoch.as_record())
        self._evaluated.clear()

    def _finish(self) -> None:
        self.settle()
        for key in list(self._open):
            self._close(key, complete=False)


class _Made(NamedTuple):
    """Where a loader was made, and its batch size; a loader that divides the batches of another one has that one's."""

    where: str
    batch_size: int | None
    dataset: Any
    """kept, so that its identity is not used for another one"""


class _Epoch:
    """One pass over a loader."""

    def __init__(self, loader: Any, known: dict[str, Any], counters: Counters) -> None:
        self._counters, self._loader, self._known = counters, loader, known
        self.is_stream = isinstance(loader.dataset, IterableDataset)
        self._number, self._where = known["epochs"], place()
        self._levels, self._length, self._base = _levels(loader.dataset)
        self._indices, self._batches, self._rows = array("q"), 0, array("q")
        self._digests: list[list[int]] = []
        self._labels: list[list[int]] = []
        self._start, self._optimizers, self._steps = counters.snapshot(), counters.optimizers, 0
        self.iterator: Any = None
        self.is_complete = False
        counters.loader = known["made"].where

    def add_indices(self, index: Any) -> None:
        """Add the indices of a batch, or of one example if the loader makes no batches."""
        if len(self._indices) >= _INDICES:
            return
        for one in index if isinstance(index, (list, tuple)) else [index]:
            if isinstance(one, int):
                self._indices.append(one)

    def add_batch(self, batch: Any) -> None:
        """Count a batch and digest the first ones."""
        self._batches += 1
        self._steps = self._counters.since(self._start)["steps"]
        self._rows.append(self._counters.rows)
        if len(self._digests) < _BATCHES:
            self._digests.append(rows(batch))
            self._labels.append(rows(batch, whole_numbers=True))

    @property
    def steps(self) -> int:
        """The optimizer steps of the loop: until its end, or, if it was left, until its last batch.

        So a loader of which only the first batch is looked at does not count as one that trains.
        """
        return self._counters.since(self._start)["steps"] if self.is_complete else self._steps

    def as_record(self) -> dict[str, Any]:
        """Return what is noted."""
        loader, counters, complete = self._loader, self._counters, self.is_complete
        taken = self._indices[: sum(self._rows)] if not complete else self._indices
        sampler = getattr(loader, "sampler", None)
        return {
            "loader": self._known["name"], "made": self._known["made"].where, "where": self._where,
            "number": self._number, "complete": complete, "stream": self.is_stream, "batches": self._batches,
            "rows": _packed(self._rows), "indices": _packed(taken), "whole": len(self._indices) < _INDICES,
            "levels": self._levels, "length": self._length, "base": self._base, "contents": self._digests,
            "labels": self._labels, "sampler": type(sampler).__name__,
            "batch_sampler": type(getattr(loader, "batch_sampler", None)).__name__,
            "replaces": bool(getattr(sampler, "replacement", False)), "limited": _is_limited(loader),
            "drop_last": bool(loader.drop_last), "batch_size": self._known["made"].batch_size,
            "optimizers": self._optimizers,
            **counters.since(self._start), "steps": self.steps,
        }  # fmt: skip


def _is_limited(loader: Any) -> bool:
    """Return whether a sampler gives another number of examples than its data set has, or may do so."""
    sampler, batches = getattr(loader, "sampler", None), type(getattr(loader, "batch_sampler", None)).__name__
    if getattr(sampler, "_num_samples", None) is not None:
        return True
    if batches not in ("BatchSampler", "BatchSamplerShard", "NoneType"):
        return True
    return type(sampler).__name__ not in ("SequentialSampler", "RandomSampler", "DistributedSampler")


def _levels(dataset: Any) -> tuple[list[str], int, str]:
    """Follow ``Subset`` to the data set below: the indices of each level, the length of the base and its digest."""
    levels = []
    while isinstance(dataset, Subset):
        levels.append(_packed(array("q", [int(one) for one in dataset.indices])))
        dataset = dataset.dataset
    try:
        length = len(dataset)
    except TypeError:
        length = 0
    return levels, length, _fingerprint(dataset)


def _fingerprint(dataset: Any) -> str:
    """Return what distinguishes the data set of a worker from that of another one: its kind and its tensors."""
    numpy = sys.modules.get("numpy")
    parts = [type(dataset).__name__]
    attributes = getattr(dataset, "__dict__", {})
    for name, value in sorted(attributes.items()):
        for one in value if isinstance(value, (tuple, list)) and len(value) < 16 else [value]:
            if isinstance(one, torch.Tensor) and is_plain(one):
                parts.append(f"{name} {tuple(one.shape)} {digest(one)}")
            elif numpy is not None and isinstance(one, numpy.ndarray) and not one.dtype.hasobject:
                values = one.flat[:: max(1, one.size // VALUES)]  # of any kind: text and dates, too
                parts.append(f"{name} {one.shape} {zlib.crc32(values.tobytes())}")
    return " ".join(parts)


def _packed(numbers: array[int]) -> str:
    return base64.b64encode(zlib.compress(numbers.tobytes(), 1)).decode()
