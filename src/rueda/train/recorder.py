"""Recording a training: rows of figures, progress on the terminal, checkpoints, and resuming from them.

Only :func:`rueda.fit` records. Measurements, and studies that only time or count updates, call the steps of a
:class:`~rueda.train.training.Training` without a recorder. What it is made of is in :mod:`rueda.train.recording`; the
recorder says in which order the parts act: rows are written before the checkpoint that they lead to, and the workers
are compared before their state is saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rueda.errors import RuedaError
from rueda.records import Row, Run
from rueda.train.comparison import Comparison
from rueda.train.evaluate import Evaluation
from rueda.train.generations import Generations
from rueda.train.recording.display import Display
from rueda.train.recording.epoch_progress import EpochProgress
from rueda.train.recording.opening import Opening, continue_run, open_run
from rueda.train.recording.recovery import Recovery
from rueda.train.recording.rows import RowBuilder
from rueda.train.recording.run_writer import RunWriter
from rueda.train.request import is_scratch
from rueda.train.saving import Saver
from rueda.train.training import StepResult, Training
from rueda.world.signals import Request


class Recorder:
    """Records a training; every worker has a recorder, and rank 0's writes the files.

    Args:
        training: the training; with ``resume`` it is restored from a checkpoint.
        run: the folder to write; None writes nothing.
        resume: which checkpoint of the run in the folder to continue from: ``last``, ``best`` or a step; None begins a
            new run.
        show: whether rank 0 shows a bar or lines.
        track: the trackers to write to as well (:mod:`rueda.train.trackers`).
        generations: of an elastic job: what this process keeps of the generations before.
    """

    def __init__(
        self,
        training: Training,
        run: Run | None = None,
        *,
        resume: str | None = None,
        show: bool = False,
        track: Sequence[str] = (),
        generations: Generations | None = None,
    ) -> None:
        self.training, self.run, self._generations = training, run, generations
        self.comparison = Comparison(training)
        """compares the workers' parameters and speed"""
        self._saver: Saver | None = None
        if run is not None or generations is not None:
            former = None if generations is None else generations.saver
            folder = None if run is None else run.checkpoints
            self._saver = Saver(training, folder, elastic=generations is not None, former=former)
        opening = self._open(resume)
        self.epoch = EpochProgress(training)
        """what this process has trained of the epoch"""
        self.display = Display(training, self.epoch, run, title=opening.title(training), show=show)
        """what is shown"""
        self._rows = RowBuilder(training, self.epoch, self.display.progress.say)
        self._writer = RunWriter(training.world, run, track, self.display.announce)
        saver = None if run is None else self._saver
        self.recovery = Recovery(training, self.comparison, saver, self.display, self._writer)
        """what ends a training, or brings it back to its last checkpoint"""
        self._save_first(opening)
        for line in opening.remarks:
            self.display.announce(line)
        if opening.incident is not None:
            self._writer.report(opening.incident)
        self.comparison.restart()

    def _open(self, resume: str | None) -> Opening:
        """Restore the training and begin to write its run folder, if there is anything to restore or write."""
        training, generations = self.training, self._generations
        if generations is not None and generations.continues(training.world, self.run):
            assert self._saver is not None, "an elastic job has commits"
            return continue_run(training, self.run, self._saver, generations)
        return Opening() if self.run is None else open_run(training, self.run, resume)

    def _save_first(self, opening: Opening) -> None:
        """Save the state with which the training begins, if it may go back to it; every worker must call it."""
        training, saver, generations = self.training, self._saver, self._generations
        if saver is None:
            return
        if self.run is not None and not opening.resumes:
            if training.recipe.on_divergence == "roll-back":
                self.save()
            elif self.comparison.is_on:
                saver.copy()
        if generations is not None:
            if opening.continues and not training.world.on_main(saver.is_writing):
                self.save()  # also to disk: the next loss may be that of all workers
            else:
                saver.commit()
            generations.enter(training, saver)

    @property
    def divergence(self) -> str | None:
        """What is no longer finite."""
        return self.recovery.divergence

    # Rows.

    def record_step(self, result: StepResult) -> None:
        """Show a step and write its noise scales; write a row and a checkpoint if the recipe asks for them here.

        Raises:
            RolledBack: the workers are no longer equal, and the training has gone back to its last checkpoint.
        """
        recipe, step = self.training.recipe, self.training.state.step
        if self._generations is not None:
            self._generations.note_update()
        if self.comparison.due():
            self.recovery.compare()
        self.display.show_step()
        self._writer.append_noise(result.noise_rows)
        if recipe.log_every is not None and step % recipe.log_every == 0:
            train = self._rows.training_figures()
            self.display.report_range("train", train)
            self.append(self._rows.of_step(train, diverged=self.divergence is not None))
        due = recipe.checkpoint_every is not None and step % recipe.checkpoint_every == 0
        if due and not self.training.updater.is_skipping:
            self.save()
        elif recipe.commit_every is not None and step % recipe.commit_every == 0:
            self.commit()

    def record_epoch(self, evaluation: Evaluation) -> Row:
        """Write the row and the checkpoint of an epoch that has ended; every worker must call it.

        Raises:
            RolledBack: the workers are no longer equal, and the training has gone back to its last checkpoint.
        """
        training, state = self.training, self.training.state
        if self.recovery.weights_are_finite():
            self.recovery.compare()
        train = self._rows.training_figures()
        row = self._rows.of_epoch(train, evaluation, diverged=self.divergence is not None)
        for name, found in {"train": train, **evaluation.sets}.items():
            self.display.report_range(name, found)
        state.epoch_sums, state.units = {}, state.units + train.weight
        training.updater.begin_totals()
        self.display.forget_sums()
        state.reached = state.reached + 1 if evaluation.reaches_target(training.recipe) else 0
        is_finite = math.isfinite(evaluation.deciding.loss)
        best = evaluation.score > state.best and is_finite
        if best:
            state.best = evaluation.score
        # The row first: a row without a checkpoint is written again after a restart, but a checkpoint without its row
        # would leave a gap.
        self.append(row)
        # Finite weights at which neither the gradient nor the loss of an evaluation is finite are ruined, too.
        if is_finite or not training.updater.is_skipping:
            self.save(best=best)
        self.display.show_epoch(row)
        return row

    def append(self, row: Row) -> None:
        """Write a row to the run folder and to the trackers."""
        self._writer.append(row)

    def flush_noise(self, *, sync: bool = False) -> None:
        """Sum the pending readings and write their rows; with ``sync`` they are on disk when it returns."""
        if self.training.noise is not None:
            self._writer.append_noise(self.training.noise.flush(), sync=sync)

    # Checkpoints.

    @property
    def commit_due(self) -> bool:
        """Whether rank 0 of an elastic job wants a commit, since the last one is old."""
        if self._generations is None or self._saver is None or not self.training.world.is_main:
            return False
        return self.training.recipe.commit_every is None and self._saver.commit_due

    def commit(self) -> None:
        """Copy the state into the memory of some workers of an elastic job; every worker must call it.

        In other jobs it does nothing.
        """
        if self._generations is not None and self._saver is not None and self.divergence is None:
            self.flush_noise()
            self._saver.commit()

    def save(self, *, best: bool = False) -> None:
        """Copy the state for a checkpoint, and begin to write it, if there is a run folder and the weights are finite.

        Every worker must call it. It waits until the checkpoint before is written.

        Raises:
            RunError: the checkpoint before could not be written; on other ranks a PeerError.
            RolledBack: the workers are no longer equal, and the training has gone back to its last checkpoint.
        """
        if self._saver is None or self.run is None or self.divergence is not None:
            self.commit()
            return
        self.flush_noise(sync=True)  # rows up to this step must be on disk before the checkpoint is
        self.recovery.compare()
        found = self._saver.save(best=best)
        if found is not None:
            self.recovery.note_nonfinite(found)

    @property
    def checkpoint_due(self) -> bool:
        """Whether rank 0 wants a checkpoint, since the last one is ``checkpoint_minutes`` old or was not written.

        In the second case :meth:`save` raises the error on all workers.
        """
        if self._saver is None or self.run is None or not self.training.world.is_main:
            return False
        return self._saver.due

    def save_on_request(self, request: Request) -> bool:
        """Write a checkpoint unless this step has one; if a signal asked, wait for it and say so.

        Every worker must call it.

        Returns:
            False if the training has diverged.
        """
        if self.run is None or self._saver is None:
            return True
        step = self.training.state.step
        asked = request is Request.STOP or not self.checkpoint_due
        if self._saver.saved_step != step:  # otherwise `checkpoint_every` has just written it
            self.save()
        if self.training.world.broadcast_object(asked):
            self._saver.finish()
        self._saver.restart_clock()
        if asked and self.divergence is None and not is_scratch(self.run.folder):
            goes_on = "; go on with --resume" if request is Request.STOP else ""
            self.display.announce(f"saved at step {step}{goes_on}")
        return self.divergence is None

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Wait at the end of the block until the last checkpoint is on disk, also after an error or a signal.

        In an elastic job nothing is waited for after an error: the workers that are left form the next world, in which
        the file is still being written; and a process that ends waits by itself.
        """
        if self._saver is None:
            yield
            return
        try:
            yield
        except BaseException:  # the other workers may be gone: no collective
            if self._generations is not None:
                self.close()
                raise
            try:
                self._saver.writer.wait()
            except RuedaError as error:
                self.display.announce(str(error))
            raise
        self._saver.finish()

    def close(self) -> None:
        """Close the trackers, and stop timing."""
        self.comparison.close()
        self._writer.close()
