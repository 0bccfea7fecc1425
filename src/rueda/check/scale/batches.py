"""Which batch the script computes on, how much of it this worker has, and which loaders train."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from rueda.check.patches import Patches
from rueda.check.scale.examples import random_states
from rueda.check.scale.notes import Notes
from rueda.check.scale.share import Share

Site = tuple[tuple[str, int], ...]


def call_site() -> Site:
    """Return the lines of the script, and of modules beside torch, that led here: the innermost four."""
    found: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < 4:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("torch.", "rueda.check.", "runpy", "importlib")):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


@dataclass(kw_only=True)
class LoaderMemory:
    """What is known of the loaders that one line of the script creates."""

    trains: bool = False
    stays_entire: bool = False
    """whether its batches are not shared out, since their loss could not be verified"""
    draws: bool | None = None

    @property
    def is_shared(self) -> bool:
        """Whether its batches are shared out."""
        return self.trains and not self.stays_entire


@dataclass(kw_only=True)
class Drawing:
    """One pass of the script over a loader."""

    memory: LoaderMemory
    may_share: bool
    num_batches: int = 0
    num_shared: int = 0
    num_uneven: int = 0
    num_backward: int = 0
    is_ahead: bool = False
    """whether the script has drawn a batch before it was done with the last one"""
    site: Site = ()


@dataclass(kw_only=True)
class BatchTracker:
    """Follows the script's batches and backward passes.

    Args:
        size: the number of workers.
        loss: ``mean`` or ``sum``.
        notes: where a refusal goes.
        is_trained: says whether a backward pass has reached a parameter.
    """

    size: int
    loss: str
    notes: Notes
    is_trained: Callable[[Tensor], bool] = lambda parameter: True
    share: Share | None = None
    """the share of the last batch that the script drew; None: an entire one, or none yet"""
    is_suspended: bool = False
    """whether random numbers are drawn for something else than the batch: by a loader or an optimizer"""
    num_batches: int = 0
    num_backward: int = 0
    num_shared_backward: int = 0
    num_merged: int = 1
    """how many of the script's batches the last one holds: more than one only in weak scaling"""
    epochs: float = 0.0
    """how many times the script has gone through its training data"""
    last_shared: bool = False
    """whether the last backward pass was of a shared batch"""
    marks: set[str] = field(default_factory=set)
    """what the script has done with the batch in hand that must be compared: part of the kind of its loss"""
    order: int = 0
    """checksum of all indices that were drawn, which must be the same on all ranks"""
    _memories: dict[Site, LoaderMemory] = field(default_factory=dict)
    _fresh: list[tuple[Drawing, Share | None]] = field(default_factory=list)  # batches since the last backward pass
    _numbers: Any = None  # the generators of Python and NumPy when the script got its share
    _is_replayed: bool = False  # whether batches that do not divide alike have been drawn to the end
    _latest: list[LoaderMemory] = field(default_factory=list)  # of the loaders of the last backward pass
    _last_factor: float = 1.0
    _outer: WeakSet[nn.Module] = field(default_factory=WeakSet)  # those whose mode the script has set
    _inner: WeakSet[nn.Module] = field(default_factory=WeakSet)  # modules within them
    _depth: int = 0

    def memory(self, site: Site) -> LoaderMemory:
        """Return what is known of the loaders of a line."""
        return self._memories.setdefault(site, LoaderMemory())

    @property
    def draws_while_loading(self) -> bool:
        """Whether a data set draws random numbers while it loads examples."""
        return any(memory.draws for memory in self._memories.values())

    def begin(self, site: Site) -> Drawing:
        """Begin a pass over a loader; without gradients, or with a model in evaluation mode, it is not shared out."""
        may_share = self.size > 1 and torch.is_grad_enabled() and not self._is_evaluating()
        return Drawing(memory=self.memory(site), may_share=may_share, site=site)

    def drew_indices(self, indices: Iterable[Any]) -> None:
        """Note the indices of an entire batch."""
        self.order = zlib.crc32(repr(indices).encode(), self.order)

    def yielded(self, drawing: Drawing, share: Share | None) -> None:
        """Note that the script gets a batch."""
        self.share = share
        self._is_replayed = False
        self._numbers = None if share is None else random_states()[1:]
        self.num_batches += 1
        drawing.num_batches += 1
        drawing.num_shared += share is not None
        drawing.num_uneven += share is not None and share.whole % self.size > 0
        if not drawing.may_share:  # an evaluation, or a training in evaluation mode, of which every worker has all
            self._fresh.clear()
            self._last_factor, self.last_shared = 1.0, False
            return
        if any(other is drawing for other, _ in self._fresh):
            drawing.is_ahead = True
        self._fresh.append((drawing, share))

    def ended(self, drawing: Drawing) -> None:
        """Note the end of a pass; refuse one that was shared out although no backward pass used its batches."""
        self.share = None
        self._is_replayed = drawing.num_uneven > 0
        if not drawing.num_backward:
            self._fresh = [entry for entry in self._fresh if entry[0] is not drawing]
        if drawing.num_shared and drawing.num_shared == drawing.num_batches and not drawing.num_backward:
            file, line = drawing.site[0] if drawing.site else ("the script", 0)
            self.notes.refuse(
                f"a loop over the DataLoader of {file}:{line}, which trains elsewhere, calls no backward(), so each "
                "worker has evaluated its share alone; put that loop under torch.no_grad(), or call model.eval() first"
            )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave random draws unchanged within the block: for a sampler, or for the processes that a loader starts."""
        kept, self.is_suspended = self.is_suspended, True
        try:
            yield
        finally:
            self.is_suspended = kept

    def begin_backward(self) -> float:
        """Return the factor of this worker's gradient in the average over all workers."""
        self.notes.check()
        self.num_backward += 1
        if self.num_batches == 0:
            self.notes.refuse(
                "backward() is called before a DataLoader gave a batch: the data are drawn outside a DataLoader, and "
                "cannot be shared out; let a DataLoader draw them"
            )
        if self._is_replayed and self.last_shared and not self._fresh:
            self.notes.refuse(
                "backward() is called again after the end of a loader whose batches do not divide alike: batches that "
                "are kept (itertools.cycle, a list) cannot be weighed; draw them anew, with "
                "`while True: for batch in loader`"
            )
        if self._numbers is not None and self._numbers != random_states()[1:]:
            self.marks.add("numbers of random or NumPy")
        for drawing, _ in self._fresh:
            drawing.memory.trains = True
            drawing.num_backward += 1
        factors = {self.factor(share) for _, share in self._fresh} or {self._last_factor}
        is_ahead = any(drawing.is_ahead for drawing, _ in self._fresh)
        if len(factors) > 1 or (is_ahead and factors != {self._last_factor} and self.num_backward > 1):
            self.notes.refuse(
                "the batches that the script has drawn since its last backward() do not divide alike among "
                f"{self.size} workers, so their examples cannot be weighed; choose a batch size that {self.size} "
                "divides, and drop_last=True"
            )
        self._last_factor = factors.pop()
        if self._fresh:
            self._latest = [drawing.memory for drawing, _ in self._fresh]
            self.last_shared = any(share is not None for _, share in self._fresh)
        self._fresh.clear()
        self.num_shared_backward += self.last_shared
        return self._last_factor

    def give_entire_batches(self) -> bool:
        """Share out no more batches of the loaders that the last backward pass used; return whether this is new."""
        is_new = any(not memory.stays_entire for memory in self._latest)
        for memory in self._latest:
            memory.stays_entire = True
        return is_new

    def factor(self, share: Share | None) -> float:
        """Return the factor of a share in the average: n N / B for a mean, N for a sum, 1 for an entire batch."""
        if share is None:
            return 1.0
        if self.loss == "sum":
            return float(self.size if share.num_counted else 0)
        return share.factor(self.size)

    def follow_modes(self, patches: Patches) -> None:
        """Follow ``model.train()`` and ``model.eval()``."""
        patches.replace(nn.Module, "train", self._train)

    def _is_evaluating(self) -> bool:
        """Return whether a trained model is in evaluation mode; layers of it, copies and frozen ones do not count."""
        models = [one for one in self._outer if not one.training and one not in self._inner]
        parameters = (parameter for one in models for parameter in one.parameters())
        return any(parameter.requires_grad and self.is_trained(parameter) for parameter in parameters)

    def _train(self, original: Any) -> Any:
        def train(module: nn.Module, mode: bool = True) -> nn.Module:
            (self._inner if self._depth else self._outer).add(module)
            self._depth += 1
            try:
                return original(module, mode)  # type: ignore[no-any-return]
            finally:
                self._depth -= 1

        return train
