"""Saving a training: a copy of its state at a step, a thread that writes it, and the way back to the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rueda.files.remote import AnyPath
from rueda.train.checkpoint import save_checkpoint
from rueda.train.copies import StateCopies, neighbour_of_main, recall
from rueda.train.resume import read_for_all
from rueda.train.state import checkpoint_contents
from rueda.train.writer import CheckpointWriter

if TYPE_CHECKING:
    from rueda.train.training import Training


class Saver:
    """Saves a training into a folder; every worker has one, and rank 0's writes the files.

    Args:
        training: the training.
        folder: the folder of the checkpoints.
    """

    def __init__(self, training: Training, folder: AnyPath) -> None:
        self._training, self._folder = training, folder
        world = training.world
        self._asynchronous = training.recipe.asynchronous_checkpoints
        self._holders = {0, neighbour_of_main(world)} if self._asynchronous else {0}
        self.copies = StateCopies(world.device, min(2, world.size))
        """those of this rank"""
        self.writer = CheckpointWriter()
        """that of rank 0; on the others it has nothing to do"""
        self._intact: set[AnyPath] = set()

    def copy(self) -> dict[str, Any]:
        """Copy the state into memory, without writing it; every worker must call it, and rank 0 gets the copy."""
        contents = checkpoint_contents(self._training, self._holders)
        if not contents or not self._asynchronous:
            return contents
        return self.copies.take(self._training.state.step, contents).contents

    def save(self, *, best: bool = False) -> None:
        """Copy the state and begin to write it; every worker must call it, after :meth:`finish`.

        With ``asynchronous_checkpoints = false`` the file is written when it returns.
        """
        contents = self.copy()
        step, keep = self._training.state.step, self._training.recipe.keep
        options: dict[str, Any] = {"step": step, "keep": keep, "best": best, "known": self._intact}
        if not self._asynchronous:
            self._training.world.on_main(_call, save_checkpoint, self._folder, contents, **options)
        elif self._training.world.is_main:
            self.writer.begin(lambda: save_checkpoint(self._folder, contents, **options))

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk; every worker must call it, and all raise the error of rank 0."""
        self._training.world.on_main(_call, self.writer.wait)

    def last(self) -> tuple[AnyPath, dict[str, Any]] | None:
        """Return the last checkpoint on all workers, from the memory of one of them or else from the disk."""
        self.finish()
        world = self._training.world
        found: tuple[AnyPath, dict[str, Any]] | None = recall(world, self.copies)
        if found is None:
            found = read_for_all(world, self._folder)
        if found is not None:
            self.copies.forget_after(found[1]["place"]["step"])
        return found


def _call(function: Any, *given: Any, **options: Any) -> None:
    """Call a function for its effect: what it returns is not sent to the other workers."""
    function(*given, **options)
