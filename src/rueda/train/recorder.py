"""The book-keeping of a training: progress on the terminal, rows of metrics, checkpoints, and how a run is resumed.

Only :func:`rueda.fit` needs it; a study or a measurement steps a :class:`~rueda.train.training.Training` without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rueda.errors import RunError
from rueda.records import Row, Run
from rueda.records.run import NoiseRow
from rueda.terminal.training import Progress, epoch_line
from rueda.train.checkpoint import latest_checkpoint, save_checkpoint
from rueda.train.evaluate import Evaluation
from rueda.train.state import checkpoint_contents, epoch_sums, restore
from rueda.train.tensorboard import open_writer, write_row
from rueda.train.training import StepResult, Training
from rueda.train.update import Totals


class Recorder:
    """Records a training; every worker has one, rank 0's writes.

    Args:
        training: is restored from the newest whole checkpoint, if one is resumed.
        run: the folder to write; None writes nothing.
        resume: go on with what the folder holds.
        show: a bar or lines on rank 0.
        tensorboard: write TensorBoard events into the run folder, too.
    """

    def __init__(
        self,
        training: Training,
        run: Run | None = None,
        *,
        resume: bool = False,
        show: bool = False,
        tensorboard: bool = False,
    ) -> None:
        self.training, self.run = training, run
        self.diverged = False
        """whether the optimizer refused gradients that are not finite"""
        self.saved_step: int | None = None
        """the step of the last checkpoint that was written here"""
        if run is not None:
            self._open(run, resume)
        is_main = training.world.is_main
        self._writer = open_writer(run) if tensorboard and run is not None and is_main else None
        name = training.task.name
        title = f"{name}, {training.recipe.workers} rehearsed workers," if training.rehearsed else name
        self.progress = Progress(speak=show and is_main, description=title, num_epochs=training.recipe.epochs)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Note where the epoch begins in this process: its speed is counted from here."""
        state, loader = self.training.state, self.training.loader
        self._seconds, self._examples, self._step = state.seconds, state.examples, state.step
        self._num_done_before = len(loader) - loader.num_batches_left()

    @property
    def seconds_per_step(self) -> float:
        """The mean of this epoch's steps in this process."""
        state = self.training.state
        return (state.seconds - self._seconds) / max(1, state.step - self._step)

    # Rows.

    def record_step(self, result: StepResult) -> None:
        """Show a step, write the noise scales that it gave, and a row and a checkpoint where the recipe wants them."""
        recipe, state = self.training.recipe, self.training.state
        remarks = self.training.updater.remarks
        while remarks:
            self.progress.say(remarks.pop(0))
        if self.progress.due:
            self._show_step()
        self._write_noise(result.noise_rows)
        if recipe.log_every is not None and state.step % recipe.log_every == 0:
            self.append(self._row("step", state.examples / max(state.seconds, 1e-9)))
        if recipe.checkpoint_every is not None and state.step % recipe.checkpoint_every == 0:
            self.save()

    def record_epoch(self, evaluation: Evaluation) -> Row:
        """Write the row and the checkpoint of an epoch that has ended."""
        training, state = self.training, self.training.state
        seconds, num_examples = state.seconds - self._seconds, state.examples - self._examples
        row = self._row(
            "epoch", num_examples / max(seconds, 1e-9), test_loss=evaluation.loss, test_accuracy=evaluation.accuracy,
            test_correct=evaluation.correct if evaluation.has_metric else None, recalibrated=evaluation.recalibrated,
            **self._noise_figures(),
        )  # fmt: skip
        state.epoch_sums = [0.0, 0.0, 0.0]
        training.updater.totals = Totals(training.world.device)
        target = training.recipe.target_accuracy
        state.reached = state.reached + 1 if target is not None and (row.test_accuracy or 0) >= target else 0
        result = evaluation.accuracy if evaluation.accuracy is not None else -evaluation.loss
        best = result > state.best
        if best:
            state.best = result
        # The row first: a row without its checkpoint is written again after a restart, a checkpoint without its row
        # would leave a hole.
        self.append(row)
        self.save(best=best)
        self.progress.say(epoch_line(row, training.recipe.epochs, seconds))
        return row

    def append(self, row: Row) -> None:
        """Write a row to the run folder and to TensorBoard."""
        if self.run is not None:
            self.training.world.on_main(self.run.append, row)
        if self._writer is not None:
            write_row(self._writer, row)

    def flush_noise(self, *, sync: bool = False) -> None:
        """Add up and write the noise scales that are waiting; with ``sync`` they are on the disk when it returns."""
        if self.training.noise is not None:
            self._write_noise(self.training.noise.flush(), sync=sync)

    def _write_noise(self, rows: Sequence[NoiseRow], *, sync: bool = False) -> None:
        if self.run is not None and rows:
            run = self.run
            self.training.world.on_main(lambda: run.append_all(rows, sync=sync))

    def _row(self, kind: str, speed: float, **results: Any) -> Row:
        training, state = self.training, self.training.state
        loss, correct, count = epoch_sums(training)
        loss, accuracy = loss / max(1.0, count), correct / max(1.0, count)
        return Row(
            kind=kind, epoch=state.epoch, step=state.step, examples=state.examples, seconds=state.seconds,
            train_loss=loss, train_accuracy=self._accuracy(accuracy), images_per_second=speed,
            rate=training.rate, global_batch=training.global_batch, rehearsed=training.rehearsed,
            diverged=self.diverged or not math.isfinite(loss), **results,
        )  # fmt: skip

    def _noise_figures(self) -> dict[str, float]:
        found = None if self.training.noise is None else self.training.noise.current
        if found is None:
            return {}
        return {"noise_scale": found.value, "noise_scale_low": found.low, "noise_scale_high": found.high}

    def _show_step(self) -> None:
        training, state = self.training, self.training.state
        loss, accuracy = training.updater.totals.means()
        speed = training.updater.totals.num_examples * training.world.size / (state.seconds - self._seconds)
        num_done = self._num_done_before + state.step - self._step
        num_steps = num_done + training.loader.num_batches_left()
        self.progress.show_step(state.epoch, num_done, num_steps, loss, self._accuracy(accuracy), speed)

    def _accuracy(self, value: float) -> float | None:
        return value if self.training.task.metric is not None else None

    # Checkpoints.

    def save(self, *, best: bool = False) -> None:
        """Write a checkpoint, if there is a run folder; all workers must call it."""
        if self.run is None:
            return
        self.flush_noise(sync=True)  # a checkpoint must not be ahead of the rows
        contents = checkpoint_contents(self.training)
        folder, step, keep = self.run.checkpoints, self.training.state.step, self.training.recipe.keep
        self.training.world.on_main(lambda: save_checkpoint(folder, contents, step=step, keep=keep, best=best))
        self.saved_step = step

    def close(self) -> None:
        """End the TensorBoard events."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, run: Run, resume: bool) -> None:
        """Start a new folder, or go on with what an old one holds."""
        training, world = self.training, self.training.world
        has_rows = world.on_main(lambda: run.metrics_file.exists() and run.metrics_file.stat().st_size > 0)
        has_checkpoint = world.on_main(lambda: any(run.checkpoints.glob("step-*.pt")))
        if not resume and (has_rows or has_checkpoint):
            raise RunError(f"{run.folder} holds a run already; go on with --resume, or choose another folder")
        found = latest_checkpoint(run.checkpoints) if resume and has_checkpoint else None
        if found is not None:
            restore(training, *found)
        given, name = training.given_recipe, training.task.name
        world.on_main(lambda: run.begin(given, name, rehearsed=training.rehearsed))
        world.on_main(run.forget_after, training.state.step)
