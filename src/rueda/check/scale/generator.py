"""torch's generator: it must stay in the same state on all workers, where the serial script's would be.

What :mod:`.draws` does not reach (the dropout within ``nn.LSTM``) draws the numbers of a share alone: the same ones on
every worker, and others than in the serial script. Where that is seen, each worker draws numbers of its own while it
computes on a share, and all return to one common state before the next batch is drawn, so that the batches stay those
of one order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rueda.check.scale.notes import Notes
from rueda.world import World
from rueda.world.seeds import derive

_OWN = (
    "an operation draws random numbers that cannot be shared out (such as the dropout within nn.LSTM): each worker "
    "draws its own from here on, as many as the serial script, but not the same"
)


class GeneratorWatch:
    """Finds random numbers that were drawn for a share alone, and keeps the workers in step.

    Args:
        world: the workers.
        notes: where the user is told.
    """

    def __init__(self, world: World, notes: Notes) -> None:
        self._world, self._notes = world, notes
        self._known: int | None = None  # checksum of the state after the last draw that was followed
        self._common: Tensor | None = None
        self.is_own = False
        """whether each worker draws numbers of its own within a shared batch"""

    def enter_batch(self, *, shared: bool) -> None:
        """Note that the script gets a batch."""
        self._known = self.checksum() if shared and not self.is_own else None
        if shared and self.is_own:
            self._common = torch.get_rng_state()
            self._seed("share", self._world.rank)

    def leave_batch(self) -> None:
        """Return to the common state, before something is drawn for the next batch."""
        if self._common is not None:
            torch.set_rng_state(self._common)
            self._common = None
            self._seed("next", 0)
        self._known = None

    def before_draw(self) -> None:
        """Check that nothing was drawn since the last draw that was followed."""
        if self._known is not None and self._known != self.checksum():
            self.draws_own()

    def after_draw(self) -> None:
        """Note the state after a draw that was followed."""
        if self._known is not None:
            self._known = self.checksum()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the watch in the backward pass, where activation checkpointing draws the numbers of a layer again."""
        kept, self._known = self._known, None
        try:
            yield
        finally:
            self._known = None if kept is None or self.is_own else self.checksum()

    def draws_own(self) -> None:
        """Let each worker draw its own numbers from the next batch on."""
        self._known = None
        if not self.is_own:
            self.is_own = True
            self._notes.say(_OWN)

    def reconcile(self) -> None:
        """Continue from rank 0's state on all workers; all of them call it where their checksums differ."""
        self.draws_own()
        torch.set_rng_state(self._world.broadcast_object(torch.get_rng_state()))

    def agreed(self) -> int:
        """Return a number that is the same on all workers if their generators are; 0 while they draw their own."""
        return 0 if self._common is not None else self.checksum()

    def _seed(self, name: str, rank: int) -> None:
        torch.default_generator.manual_seed(derive(name, self.checksum(), rank))

    @staticmethod
    def checksum() -> int:
        """Return a checksum of the state of torch's generator."""
        return zlib.crc32(torch.get_rng_state().numpy().tobytes())
