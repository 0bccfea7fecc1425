"""Recording a training: progress on the terminal, rows of metrics, checkpoints, and resuming from them.

Only :func:`rueda.fit` records. Measurements, and studies that only time or count updates, call the steps of a
:class:`~rueda.train.training.Training` without a recorder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rueda.errors import NonFiniteError, RuedaError, WorldError
from rueda.files.remote import AnyPath
from rueda.records import Recipe, Row, Run
from rueda.records.metric import ACCURACY, LOSS
from rueda.records.recipe.differences import describe_changes
from rueda.records.run import Incident, NoiseRow
from rueda.terminal.numbers import things
from rueda.terminal.training import Progress
from rueda.train.checkpoint import copy_as_step, remove_from
from rueda.train.comparison import Comparison, repair
from rueda.train.divergence import ADVICE, MOST_ROLL_BACKS, ROLL_BACK_FACTOR, nonfinite_in_state
from rueda.train.drift import Drift
from rueda.train.evaluate import Evaluation
from rueda.train.generations import Generations, job_name
from rueda.train.loss_watch import LossWatch
from rueda.train.request import is_scratch
from rueda.train.resume import changed_file, check_same_recipe, check_same_task, read_for_all
from rueda.train.saving import Saver
from rueda.train.state import epoch_sums, restore
from rueda.train.totals import Figures, Sums, figures, out_of_range
from rueda.train.trackers import open_trackers
from rueda.train.trackers.tracker import numbers
from rueda.train.training import StepResult, Training
from rueda.world.signals import Request

TOKENS = "tokens"
"""the unit in which the weights of the losses are counted, not the examples"""


class RolledBack(Exception):
    """Raised on all workers after the training has gone back to its last checkpoint in the middle of an epoch."""


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
        self.divergence: str | None = None
        """what is no longer finite"""
        self.saved_step: int | None = None
        """the step of the last checkpoint that this process began to write"""
        self._saved_at = time.monotonic()
        self._saver: Saver | None = None
        if run is not None or generations is not None:
            former = None if generations is None else generations.saver
            folder = None if run is None else run.checkpoints
            self._saver = Saver(training, folder, elastic=generations is not None, former=former)
        self.comparison = Comparison(training)
        """compares the workers' parameters and speed"""
        self.watch = LossWatch()
        self._sees_losses = training.world.device.type == "cpu"
        self._reported: set[object] = set()
        self._resumed_with: list[str] = []
        """lines about what differs from the training that is resumed"""
        continues = generations is not None and generations.continues(training.world, run)
        incident = self._continue(run) if continues else None
        resumed = self._where() if continues else "" if run is None else self._open(run, resume)
        if generations is not None and self._saver is not None:
            if continues and not training.world.on_main(self._saver.is_writing):
                self.save()  # also to disk: the next loss may be that of all workers
            else:
                self._saver.commit()
            generations.enter(training, self._saver)
        is_main = training.world.is_main
        self._trackers = dict(zip(track, open_trackers(track, run), strict=True)) if run and is_main else {}
        workers = things(training.recipe.workers, "rehearsed worker")
        workers = workers if training.rehearsed else things(training.world.size, "worker")
        title = f"{training.task.name} on {workers}{' in one process' * training.rehearsed}{resumed}"
        self.progress = Progress(
            speak=show and is_main, title=title,
            num_epochs=None if training.recipe.adascale else training.recipe.epochs,
            shows_utilisation=training.utilisation is not None, unit=training.task.unit,
            evaluated_on="test" if training.task.validation is None else "validation",
        )  # fmt: skip
        for line in self._resumed_with:
            self._announce(line)
        if incident is not None:
            self._report(incident)
        self.comparison.restart()
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Remember the counters at the start of the epoch in this process, from which its speed is computed."""
        state, loader = self.training.state, self.training.loader
        self._seconds, self._examples, self._step = state.seconds, state.examples, state.step
        self._num_done_before = len(loader) - loader.num_batches_left()

    @property
    def seconds_per_step(self) -> float:
        """The mean time of this epoch's steps in this process."""
        state = self.training.state
        return (state.seconds - self._seconds) / max(1, state.step - self._step)

    # Rows.

    def record_step(self, result: StepResult) -> None:
        """Show a step and write its noise scales; write a row and a checkpoint if the recipe asks for them here.

        Raises:
            RolledBack: the workers are no longer equal, and the training has gone back to its last checkpoint.
        """
        recipe, state = self.training.recipe, self.training.state
        if self._generations is not None:
            self._generations.note_update()
        if self.comparison.due():
            self.compare()
        remarks = self.training.updater.remarks
        while remarks:
            self.progress.say(remarks.pop(0))
        if self._sees_losses or self.progress.due:
            self._watch_loss()
        if self.progress.due:
            self._show_step()
        self._write_noise(result.noise_rows)
        if recipe.log_every is not None and state.step % recipe.log_every == 0:
            sums = epoch_sums(self.training)
            units = state.units + sums[LOSS.name][1] if self._counts_weights else state.examples
            self.append(self._row("step", units / max(state.seconds, 1e-9), sums, {}))
        due = recipe.checkpoint_every is not None and state.step % recipe.checkpoint_every == 0
        if due and not self.training.updater.is_skipping:
            self.save()
        elif recipe.commit_every is not None and state.step % recipe.commit_every == 0:
            self.commit()

    def record_epoch(self, evaluation: Evaluation) -> Row:
        """Write the row and the checkpoint of an epoch that has ended; every worker must call it.

        Raises:
            RolledBack: the workers are no longer equal, and the training has gone back to its last checkpoint.
        """
        training, state = self.training, self.training.state
        if self._weights_are_finite():
            self.compare()
        seconds, sums = state.seconds - self._seconds, epoch_sums(training)
        speed = self._num_units() / max(seconds, 1e-9)
        results = {name: found.values for name, found in evaluation.sets.items()}
        row = self._row(
            "epoch", speed, sums, results, test_loss=evaluation.test.loss,
            test_accuracy=evaluation.test.values.get(ACCURACY.name),
            test_correct=evaluation.test.counts.get(ACCURACY.name), recalibrated=evaluation.recalibrated,
            last=training.is_over,
            model_flops_utilisation=self._utilisation((state.examples - self._examples) / max(seconds, 1e-9)),
            **self._noise_figures(),
        )  # fmt: skip
        for name, found in evaluation.sets.items():
            self._report_range(name, found)
        state.epoch_sums, state.units = {}, state.units + sums[LOSS.name][1]
        training.updater.begin_totals()
        self.watch.forget_sums()
        state.reached = state.reached + 1 if self._reaches_target(evaluation) else 0
        deciding = evaluation.value()
        result = -math.inf if deciding is None or math.isnan(deciding) else evaluation.metric.score(deciding)
        best = result > state.best and math.isfinite(evaluation.deciding.loss)
        if best:
            state.best = result
        # The row first: a row without a checkpoint is written again after a restart, but a checkpoint without its row
        # would leave a gap.
        self.append(row)
        # Finite weights at which neither the gradient nor the loss of an evaluation is finite are ruined, too.
        if math.isfinite(evaluation.deciding.loss) or not training.updater.is_skipping:
            self.save(best=best)
        self.progress.show_epoch(row, seconds)
        if training.is_over:
            self.progress.show_others(row)
        return row

    def append(self, row: Row) -> None:
        """Write a row to the run folder and to the trackers."""
        if self.run is not None:
            self.training.world.on_main(self.run.append, row)
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.write(numbers(row), row.step)
            except Exception as error:  # such as a server that is gone: the training goes on
                del self._trackers[name]
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._announce(f"{name} gets no further figures ({reason}); the run folder has all of them")

    def flush_noise(self, *, sync: bool = False) -> None:
        """Sum the pending readings and write their rows; with ``sync`` they are on disk when it returns."""
        if self.training.noise is not None:
            self._write_noise(self.training.noise.flush(), sync=sync)

    def _write_noise(self, rows: Sequence[NoiseRow], *, sync: bool = False) -> None:
        if self.run is not None and rows:
            run = self.run
            self.training.world.on_main(lambda: run.append_all(rows, sync=sync))

    def _row(
        self, kind: str, speed: float, sums: Sums, sets: Mapping[str, dict[str, float | None]], **results: Any
    ) -> Row:
        training, state = self.training, self.training.state
        found = figures(training.task.all_metrics, sums, {})
        self._report_range("train", found)
        return Row(
            kind=kind, epoch=state.epoch, step=state.step, examples=state.examples, seconds=state.seconds,
            train_loss=found.loss, train_accuracy=found.values.get(ACCURACY.name), images_per_second=speed,
            unit=training.task.unit, units=state.units + found.weight if self._counts_weights else None,
            metrics=found.metrics, figures={"train": found.values, **sets},
            rate=training.rate, global_batch=training.global_batch, rehearsed=training.rehearsed,
            diverged=self.divergence is not None or not math.isfinite(found.loss), **results,
        )  # fmt: skip

    @property
    def _counts_weights(self) -> bool:
        """Whether the throughput counts what the losses are averaged over, such as tokens, and not examples."""
        return self.training.task.unit == TOKENS

    def _num_units(self) -> float:
        """Return the images, examples or tokens of this epoch in this process; all workers must call it for tokens."""
        training = self.training
        if not self._counts_weights:
            return training.state.examples - self._examples
        return training.updater.totals.sums_over(training.world)[LOSS.name][1]

    def _reaches_target(self, evaluation: Evaluation) -> bool:
        recipe = self.training.recipe
        target = recipe.target if recipe.target is not None else recipe.target_accuracy
        if target is None:
            return False
        info = next((one for one in evaluation.test.metrics if one.name == recipe.target_metric), evaluation.metric)
        if recipe.target_metric == LOSS.name:
            info = LOSS
        return info.reaches(evaluation.value(info.name), target)

    # What the user is told when it happens.

    def _announce(self, line: str) -> None:
        """Print a line on rank 0, even if no progress is shown."""
        if self.training.world.is_main:
            self.progress.announce(line)

    def _report_range(self, of: str, found: Figures) -> None:
        """Say once for each set and metric that its value is outside the range that the metric states."""
        for name, line in out_of_range(self.training.task.all_metrics, found).items():
            if (of, name) not in self._reported:
                self._reported.add((of, name))
                self._announce(f"{of}: {line}")

    def _report(self, incident: Incident) -> None:
        """Write an incident to the run folder, and say it."""
        if self.run is not None:
            self.training.world.on_main(self.run.append, incident)
        self._announce(incident.text)

    def _watch_loss(self) -> None:
        """Say that the loss explodes; on a GPU only where its value is read anyway, so as not to wait for it."""
        totals = self.training.updater.totals
        line = self.watch.take(float(totals.loss), totals.weight(), self.training.state.step)
        if line is not None:
            self._announce(line)

    def _utilisation(self, speed: float) -> float | None:
        utilisation = self.training.utilisation
        if utilisation is None:
            return None
        value = utilisation.at(speed)
        if utilisation.remark is not None:
            self.progress.say(utilisation.remark)
            self.training.utilisation = None
        return value

    def _noise_figures(self) -> dict[str, float]:
        found = None if self.training.noise is None else self.training.noise.current
        if found is None:
            return {}
        return {"noise_scale": found.value, "noise_scale_low": found.low, "noise_scale_high": found.high}

    def _show_step(self) -> None:
        training, state = self.training, self.training.state
        found = training.updater.totals.here()
        seconds = state.seconds - self._seconds
        count = found.weight if self._counts_weights else training.updater.totals.num_examples
        done = self._num_done_before + state.step - self._step
        self.progress.show_step(
            state.epoch, done, done + training.loader.num_batches_left(), seconds=seconds,
            speed=count * training.data_world.size / seconds, loss=found.loss, value=found.primary,
            metric=found.metrics[0],
        )  # fmt: skip

    # The workers.

    def compare(self) -> None:
        """Compare the workers, and repair or go back if they are no longer equal; every worker must call it.

        Raises:
            RolledBack: the training has gone back to its last checkpoint.
            WorldError: there is none, or the workers differ again and again.
        """
        found = self.comparison.compare()
        for incident in found.incidents:
            self._report(incident)
        if found.drift is None:
            return
        if found.drift.source is None:
            self._go_back(found.drift)
            raise RolledBack
        repair(self.training, found.drift)
        whose = f"repaired with the parameters and the optimizer state of rank {found.drift.source}"
        self._report(self.comparison.record(found.drift, whose))

    def _go_back(self, drift: Drift) -> None:
        """Go back to the last checkpoint, since nobody knows which worker is right."""
        found = None if self._saver is None else self._saver.last()
        if found is None or self.run is None:
            raise WorldError(f"{drift.text}; there is no checkpoint to go back to: train with a run folder")
        restore(self.training, *found)
        state = self.training.state
        self.training.world.on_main(self.run.forget_after, state.step, state.epoch)
        self.watch.forget_sums()
        self._report(self.comparison.record(drift, f"which is right is unknown: back to update {state.step:,}"))

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
        self.compare()
        found = self._saver.save(best=best)
        if found is not None:
            self._note_nonfinite(found)
            return
        self.saved_step, self._saved_at = self.training.state.step, time.monotonic()

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
                self._announce(str(error))
            raise
        self._saver.finish()

    def _weights_are_finite(self) -> bool:
        """Test all weights on rank 0 and set ``divergence`` on all workers if they are not finite."""
        training = self.training
        if self.divergence is None:
            found = training.world.on_main(nonfinite_in_state, training.model, training.optimizer)
            if found is not None:
                self._note_nonfinite(found)
        return self.divergence is None

    def _note_nonfinite(self, found: str) -> None:
        self.divergence = f"nan or inf in {found}: {ADVICE}"

    def note_divergence(self, error: NonFiniteError) -> None:
        """Remember that the gradients of an update were not finite, which ends the epoch."""
        self.divergence = str(error)

    def roll_back(self) -> bool:
        """After a divergence go back to the last checkpoint, at a lower rate, if the recipe says so.

        Every worker must call it.

        Returns:
            Whether the training continues; False if it is to end, since it has gone back too often already.
        """
        training, run, before = self.training, self.run, self.training.state
        number = before.num_roll_backs + 1
        if run is None or training.recipe.on_divergence != "roll-back" or number > MOST_ROLL_BACKS:
            return False
        found = None if self._saver is None else self._saver.last()
        assert found is not None, "a run that may roll back begins with a checkpoint"
        restore(training, *found)
        state = training.state
        state.num_roll_backs, state.rate_factor = number, before.rate_factor * ROLL_BACK_FACTOR
        training.world.on_main(run.forget_after, state.step, state.epoch)
        self.progress.say(
            f"diverged after update {before.step:,}: back to update {state.step:,}, at {state.rate_factor:g} times the "
            f"rate (roll-back {number} of at most {MOST_ROLL_BACKS})"
        )
        self.divergence = None
        self.comparison.restart()
        return True

    @property
    def checkpoint_due(self) -> bool:
        """Whether rank 0 wants a checkpoint, since the last one is ``checkpoint_minutes`` old or was not written.

        In the second case :meth:`save` raises the error on all workers.
        """
        if self._saver is None or self.run is None or not self.training.world.is_main:
            return False
        minutes = self.training.recipe.checkpoint_minutes
        is_old = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        return is_old or self._saver.writer.failed

    def save_on_request(self, request: Request) -> bool:
        """Write a checkpoint unless this step has one; if a signal asked, wait for it and say so.

        Every worker must call it.

        Returns:
            False if the training has diverged.
        """
        if self.run is None or self._saver is None:
            return True
        asked = request is Request.STOP or not self.checkpoint_due
        if self.saved_step != self.training.state.step:  # otherwise `checkpoint_every` has just written it
            self.save()
        if self.training.world.broadcast_object(asked):
            self._saver.finish()
        self._saved_at = time.monotonic()
        if self.training.world.is_main and self.divergence is None and asked and not is_scratch(self.run.folder):
            goes_on = "; go on with --resume" if request is Request.STOP else ""
            self.progress.announce(f"saved at step {self.training.state.step}{goes_on}")
        return self.divergence is None

    def close(self) -> None:
        """Close the trackers, and stop timing."""
        self.comparison.close()
        for tracker in self._trackers.values():
            tracker.close()

    def _open(self, run: Run, resume: str | None) -> str:
        """Begin a new run folder, or restore the training from an existing one; return a remark for the title.

        Nothing is written before all that is there was read and found to fit.
        """
        training, world = self.training, self.training.world
        world.on_main(lambda: run.check_folder(resume=resume is not None))
        found = None
        if resume is not None:
            world.on_main(check_same_task, run, training.task)
            found = read_for_all(world, run.checkpoints, resume)
        if found is not None:
            check_same_recipe(found[0], training.given_recipe, found[1])
            restore(training, *found)
            former = Recipe.from_toml(found[1]["recipe"])
            if former != training.given_recipe:
                changes = describe_changes(former, training.given_recipe)
                training.updater.remarks.append(f"the recipe changes from update {training.state.step:,} on: {changes}")
            self._resumed_with += world.on_main(changed_file, run, training.task)
        world.on_main(self._begin_files, run, None if found is None else found[0])
        if found is None:
            if training.recipe.on_divergence == "roll-back":
                self.save()
            elif self._saver is not None and self.comparison.is_on:
                self._saver.copy()  # so that there is something to go back to
            return ""
        return self._where()

    def _where(self) -> str:
        """Return where the training goes on, for the title."""
        epoch, step = self.training.state.epoch, self.training.state.step
        over = self.training.is_over
        return ", already trained to its end" if over else f", resuming at epoch {epoch + 1}, step {step:,}"

    def _continue(self, run: Run | None) -> Incident | None:
        """Go on from the last commit of an elastic job, in a new generation; every worker must call it.

        Without any, since the first generation was lost before it had made one, the training begins anew.
        """
        assert self._saver is not None and self._generations is not None
        found = self._saver.last_commit()
        if found is not None:
            restore(self.training, *found)
        if run is not None:
            self.training.world.on_main(self._begin_files, run, None)
        return self._generations.incident(self.training)

    def _begin_files(self, run: Run, resumed: AnyPath | None) -> None:
        """Write the files of the run; remove the rows and checkpoints behind the one that it is resumed from."""
        training, state = self.training, self.training.state
        if resumed is not None:
            # Checkpoints first: a process that is killed in between resumes from this one and removes the rows then.
            remove_from(run.checkpoints, state.step, but=copy_as_step(resumed, state.step))
        if run.metrics_file.exists():
            run.forget_after(state.step, state.epoch)
        task = training.task
        run.begin(
            training.given_recipe, task.name, task_file=task.file, rehearsed=training.rehearsed, from_step=state.step,
            job=job_name(),
        )  # fmt: skip
