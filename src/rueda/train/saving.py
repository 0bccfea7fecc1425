"""Saving a training: a copy of its state at a step, a thread that writes it, and the way back to the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rueda.files.remote import AnyPath
from rueda.train.checkpoint import save_checkpoint
from rueda.train.copies import StateCopies, neighbour_of_main, recall
from rueda.train.divergence import nonfinite_in_state
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
        self._holders = {0, neighbour_of_main(world)}
        self.copies = StateCopies(world.device, min(2, world.size))
        """those of this rank"""
        self.writer = CheckpointWriter()
        """that of rank 0; on the others it has nothing to do"""
        self._intact: set[AnyPath] = set()

    def copy(self) -> dict[str, Any]:
        """Copy the state into memory, without writing it; every worker must call it, and rank 0 gets the copy."""
        if self._training.world.size == 1:
            self.writer.wait()  # a worker alone has one copy, which may still be written
        contents = checkpoint_contents(self._training, self._holders)
        if not contents or not self._asynchronous:
            return contents
        return self.copies.take(self._training.state.step, contents).contents

    def save(self, *, best: bool = False) -> str | None:
        """Copy the state and begin to write it, once the checkpoint before is written; every worker must call it.

        With ``asynchronous_checkpoints = false`` the file is written when it returns.

        Returns:
            What is not finite, if anything is; then nothing is written.

        Raises:
            RunError: a checkpoint could not be written; on other ranks than 0 a PeerError.
        """
        contents, step = self.copy(), self._training.state.step
        found: str | None = self._training.world.on_main(self._nonfinite)
        if found is not None:
            self.copies.forget_after(step - 1)
            return found
        keep = self._training.recipe.keep
        options: dict[str, Any] = {"step": step, "keep": keep, "best": best, "known": self._intact}
        if self._training.world.is_main:  # after the collective, which the thread would delay
            self.writer.begin(lambda: save_checkpoint(self._folder, contents, **options))
        if not self._asynchronous:
            self.finish()
        return None

    def _nonfinite(self) -> str | None:
        """Wait until the checkpoint before is written, and return which tensors of the state are not finite."""
        self.writer.wait()
        newest = next(iter(self.copies.kept()), None)
        if newest is not None and newest.step == self._training.state.step and newest.is_finite:
            return None
        return nonfinite_in_state(self._training.model, self._training.optimizer)

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk; every worker must call it, and all raise the error of rank 0."""
        self._training.world.on_main(self._wait)

    def _wait(self) -> None:
        self.writer.wait()

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
