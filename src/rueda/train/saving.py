"""Saving a training: a copy of its state at a step, a thread that writes it, and the way back to the last one.

In an elastic job a copy that is not written is a commit (:mod:`rueda.train.generations`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rueda.files.remote import AnyPath
from rueda.train.checkpoint import list_checkpoints, save_checkpoint, step_of
from rueda.train.copies import StateCopies, StateCopy, holders_of_copies, recall
from rueda.train.divergence import nonfinite_in_contents, nonfinite_in_state, nonfinite_tensors
from rueda.train.resume import read_for_all
from rueda.train.state import checkpoint_contents
from rueda.train.writer import CheckpointWriter

if TYPE_CHECKING:
    from rueda.train.training import Training

COMMIT_SHARE = 0.01
"""the part of the time that commits may take"""
_SHORTEST, _LONGEST = 1.0, 300.0
"""seconds between two commits"""


class Saver:
    """Saves a training into a folder; every worker has one, and rank 0's writes the files.

    Args:
        training: the training.
        folder: the folder of the checkpoints; None keeps copies in memory only.
        elastic: whether the copies are commits, which outlive rank 0.
        former: the saver of this process in the generation before: its copies, and the file that it may still write.
    """

    def __init__(
        self, training: Training, folder: AnyPath | None, *, elastic: bool = False, former: Saver | None = None
    ) -> None:
        self._training, self._folder, self._elastic = training, folder, elastic
        world = training.world
        self._copies_all = elastic or training.recipe.asynchronous_checkpoints
        self._asynchronous = training.recipe.asynchronous_checkpoints
        self._holders = {0} if training.mesh.divides_model else holders_of_copies(world, elastic=elastic)
        num_kept = 2 if elastic else min(2, world.size)
        self.copies: StateCopies = StateCopies(world.device, num_kept) if former is None else former.copies
        """those of this rank"""
        self.writer: CheckpointWriter = CheckpointWriter() if former is None else former.writer
        """that of rank 0; on the others it has nothing to do"""
        self._written: StateCopy | None = None if former is None else former._written  # the last copy to be written
        self._intact: set[AnyPath] = set()
        self._num_commits, self._commit_seconds = 0, 0.0
        self._committed_at = time.monotonic()

    def copy(self) -> dict[str, Any]:
        """Copy the state into memory, without writing it; every worker must call it, and rank 0 gets the copy."""
        following = self.copies.next
        if self._written is not None and (following is None or following is self._written):
            self.writer.join()  # the memory of the next copy may still be written
        contents = checkpoint_contents(self._training, self._holders)
        self._committed_at = time.monotonic()
        if self._training.world.rank not in self._holders:
            self.copies.forget()  # of a generation in which it was a holder
        if not contents or not self._copies_all:
            return contents
        return self.copies.take(self._training.state.step, contents).contents

    def is_writing(self) -> bool:
        """Return whether this process still writes a checkpoint."""
        return self.writer.is_writing

    def commit(self) -> None:
        """Copy the state into the memory of some workers, which all must call it."""
        began = time.monotonic()
        self.copy()
        seconds = time.monotonic() - began
        self._num_commits += 1
        if self._num_commits > 1:  # the first one waits for workers that start, and for memory that is new
            self._commit_seconds = seconds if self._num_commits == 2 else min(seconds, self._commit_seconds)

    @property
    def commit_due(self) -> bool:
        """Whether the last copy is so old that the next commit would take a hundredth of the time since."""
        pause = min(_LONGEST, max(_SHORTEST, self._commit_seconds / COMMIT_SHARE))
        return time.monotonic() - self._committed_at >= pause

    def save(self, *, best: bool = False) -> str | None:
        """Copy the state and begin to write it, once the checkpoint before is written; every worker must call it.

        With ``asynchronous_checkpoints = false`` the file is written when it returns.

        Returns:
            What is not finite, if anything is; then nothing is written.

        Raises:
            RunError: a checkpoint could not be written; on other ranks than 0 a PeerError.
        """
        contents, step = self.copy(), self._training.state.step
        found: str | None = self._training.world.on_main(self._nonfinite, contents)
        if found is not None:
            self.copies.forget_after(step - 1)
            return found
        keep = self._training.recipe.keep
        options: dict[str, Any] = {"step": step, "keep": keep, "best": best, "known": self._intact}
        folder = self._folder
        if self._training.world.is_main and folder is not None:  # after the collective, which the thread would delay
            self._written = next(iter(self.copies.kept()), None)
            self.writer.begin(lambda: save_checkpoint(folder, contents, **options))
        if not self._asynchronous:
            self.finish()
        return None

    def _nonfinite(self, contents: dict[str, Any]) -> str | None:
        """Wait until the checkpoint before is written, and return which tensors of the state are not finite."""
        self.writer.wait()
        newest = next(iter(self.copies.kept()), None)
        if newest is not None and newest.step == self._training.state.step and newest.is_finite:
            return None
        if contents.get("local") is not None and (found := nonfinite_tensors(contents["model"])) is not None:
            return f"the workers' mean of {found}"
        if self._training.mesh.divides_model:  # rank 0 has all tensors in the copy only
            return nonfinite_in_contents(self._training.model, contents)
        return nonfinite_in_state(self._training.model, self._training.optimizer)

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk; every worker must call it, and all raise the error of rank 0."""
        self._training.world.on_main(self._wait)

    def _wait(self) -> None:
        self.writer.wait()

    def last(self) -> tuple[AnyPath, dict[str, Any]] | None:
        """Return the last checkpoint on all workers, from the memory of one of them or else from the disk.

        Commits are no checkpoints: a training that diverges may have made some since it went wrong.
        """
        self.finish()
        world = self._training.world
        found: tuple[AnyPath, dict[str, Any]] | None = None if self._elastic else recall(world, self.copies)
        if found is None and self._folder is not None:
            found = read_for_all(world, self._folder)
        if found is not None:
            self.copies.forget_after(found[1]["place"]["step"])
        return found

    def last_commit(self) -> tuple[AnyPath, dict[str, Any]] | None:
        """Return the last commit on all workers, which must all call it; None if there is none.

        It comes from the memory of one of them, unless all that had it are lost: then the checkpoint is read from disk.
        """
        world, folder = self._training.world, self._folder
        on_disk = world.on_main(self._step_on_disk)
        found: tuple[AnyPath, dict[str, Any]] | None = recall(world, self.copies, later_than=on_disk - 1)
        if found is None and folder is not None:
            found = read_for_all(world, folder)
        return found

    def _step_on_disk(self) -> int:
        """Return the step of the newest checkpoint, 0 if there is none."""
        newest = [] if self._folder is None else list_checkpoints(self._folder)[:1]
        return step_of(newest[0]) if newest else 0
