"""The loop: one code path for 1 and N workers.

Phases: **prepare** (workers, data, model, optimizer), **restore** (the newest whole checkpoint), then for each
epoch **train**, **evaluate** on all workers, **record** (a row, a checkpoint) and **decide** whether to go on.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rueda.data import DatasetLoader
from rueda.errors import CheckpointError, NonFiniteError, RecipeError, RunError
from rueda.optim import AdaScale
from rueda.optim.meters import layer_groups
from rueda.records import Recipe, Row, Run
from rueda.tasks import Task, load_task
from rueda.terminal.training import Progress, epoch_line
from rueda.train.checkpoint import latest_checkpoint, save_checkpoint
from rueda.train.evaluate import Evaluation, evaluate
from rueda.train.interruption import Interruption
from rueda.train.layout import memory_format
from rueda.train.loaders import evaluation_loader, training_loader
from rueda.train.noise_log import NoiseLog
from rueda.train.normalisation import Recalibration, convert
from rueda.train.optimizers import build_optimizer
from rueda.train.random_state import random_state, restore_random_state
from rueda.train.rates import build_schedule
from rueda.train.regime import adapted, batch_at, grown_batch, noise_sigma
from rueda.train.rehearsal import Rehearsal
from rueda.train.state import Place, Result
from rueda.train.tensorboard import open_writer, write_row
from rueda.train.update import Totals, Updater, autocast_for
from rueda.world import World, init
from rueda.world.seeds import seed_model

_DTYPES = {"float64": torch.float64}


def fit(
    task: Task | str,
    recipe: Recipe | None = None,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    rehearse: bool = False,
) -> Result:
    """Train a task by a recipe, on as many workers as were started: the twin of ``rueda train``.

    Args:
        task: a task, the name of a built-in one, or the path of a file that defines one.
        recipe: how to train; by default the task's own.
        folder: the run folder to write; None writes nothing.
        resume: go on from the newest checkpoint in the folder, on any number of workers.
        progress: show a bar or lines on rank 0.
        tensorboard: write TensorBoard events into the run folder, too.
        rehearse: be all of the recipe's workers in this one process (:mod:`rueda.train.rehearsal`).
    """
    task = load_task(task) if isinstance(task, str) else task
    recipe = recipe or task.recipe
    world = init()
    if rehearse and world.size > 1:
        raise RecipeError(f"a rehearsal is one process, but {world.size} workers run; start one, or do not rehearse")
    if not rehearse and recipe.workers not in (1, world.size):
        raise RecipeError(
            f"the recipe is for {recipe.workers} workers, but {world.size} run; start {recipe.workers}, or set "
            f"workers = {world.size} and look at batch and rate again"
        )
    recipe = recipe if rehearse else recipe.change(workers=world.size)
    run = None if folder is None else Run(Path(folder))
    training = Training(
        task, recipe, world, run, resume=resume, show=progress, tensorboard=tensorboard, rehearse=rehearse
    )
    return training.run_all()


class Training:
    """One training: what :func:`fit` prepares and runs."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        run: Run | None = None,
        *,
        resume: bool = False,
        show: bool = False,
        tensorboard: bool = False,
        rehearse: bool = False,
    ) -> None:
        # Prepare: the same model on all ranks.
        self.task, self.given, self.world, self.run, self.show = task, recipe, world, run, show
        self.recipe = recipe = adapted(recipe)
        self.rehearsed = rehearse
        train_data, test_data = task.load("train"), task.load("test")
        dtype = _DTYPES.get(recipe.precision, torch.float32)
        self.loader = training_loader(task, train_data, recipe, world, dtype)
        self.test_loader = evaluation_loader(test_data, _evaluation_batch(recipe, world), world, dtype)
        seed_model(recipe.seed)
        model = convert(task.build(recipe), recipe)
        self.order = memory_format(model, recipe)
        self.model = model.to(device=world.device, dtype=dtype).to(memory_format=self.order)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(recipe, self.model)
        compiled: nn.Module = torch.compile(self.model) if recipe.compile else self.model  # type: ignore[assignment]
        wrapped = world.wrap(compiled, sync_buffers=False, gradient_as_bucket_view=True)
        groups = layer_groups(self.model) if recipe.noise_scale_groups else {}
        self.updater = (Rehearsal if rehearse else Updater)(task, recipe, world, wrapped, self.optimizer, groups)
        if isinstance(self.updater, Rehearsal) and isinstance(self.loader, DatasetLoader):
            self.loader.read_as(recipe.workers, self.updater.as_reader)
        self.noise = (
            None
            if recipe.noise_scale_every is None
            else NoiseLog(recipe, world, self.loader.num_examples, tuple(groups))
        )
        """the gradient noise scale, if the recipe wants it"""
        self.recalibration = Recalibration(recipe, world, self.model, train_data)
        # AdaScale's clock counts the steps of one worker, all others those of the first batch size.
        clock_batch = recipe.local_batch if recipe.adascale else recipe.global_batch
        self.schedule = build_schedule(recipe, max(1, self.loader.num_examples // clock_batch))
        self.rate = self.schedule(0.0)
        """the last update's rate, AdaScale's gain included"""
        self.recalibrated = False
        """whether the last evaluation began with new batch-norm statistics"""
        self.diverged = False
        """whether an optimizer met a gradient that is not finite"""
        self.place = Place()
        # Restore.
        if run is not None:
            self._open_run(run, resume)
        self.writer = open_writer(run) if tensorboard and run is not None and world.is_main else None

    def run_all(self) -> Result:
        """Train until the recipe is done, the target is reached, the loss is gone, or a signal comes."""
        row: Row | None = None
        status = "finished"
        bar = Progress(
            speak=self.show and self.world.is_main, description=self._description, num_epochs=self.recipe.epochs
        )
        with Interruption(self.world) as interruption, bar:
            while self.place.epoch < self.recipe.epochs:
                begun = self.place.seconds
                examples = self.place.examples
                stopped = self._train_epoch(bar, interruption)
                if stopped:
                    status = "interrupted"
                    break
                row = self._record_epoch(
                    self.test_results(), self.place.seconds - begun, self.place.examples - examples
                )
                bar.say(epoch_line(row, self.recipe.epochs, self.place.seconds - begun))
                if row.diverged:
                    status = "diverged"
                    break
                if self.recipe.target_accuracy is not None and self.place.reached >= self.recipe.patience:
                    status = "reached-target"
                    break
        if self.writer is not None:
            self.writer.close()
        return Result(
            status=status,
            row=row,
            model=self.model,
            recipe=self.given,
            folder=None if self.run is None else self.run.folder,
            signal=interruption.signal,
            noise_scale=None if self.noise is None else self.noise.current,
        )

    @property
    def _description(self) -> str:
        return f"{self.task.name}, {self.recipe.workers} rehearsed workers," if self.rehearsed else self.task.name

    # Train.

    def _train_epoch(self, bar: Progress, interruption: Interruption) -> bool:
        """Make the updates of an epoch, or what is left of it; True if a signal stopped it."""
        recipe, place, world = self.recipe, self.place, self.world
        self.loader.set_epoch(place.epoch)
        self.set_batch()
        self.updater.totals = Totals(world.device)
        self.model.train()
        started, seconds_before, step_before = time.perf_counter(), place.seconds, place.step
        num_done = len(self.loader) - self.loader.num_batches_left()
        while True:
            self.updater.begin(place.step)
            batch = self.loader.next_batch()
            if batch is None:
                break
            inputs, targets = batch
            rate = self.schedule(place.clock)
            try:
                measure = self.noise is not None and self.noise.wanted(place.step)
                self.updater.update(inputs, targets, rate=rate, step=place.step, measure=measure)
            except NonFiniteError:  # of averaged gradients: on all workers at the same step
                self.diverged = True
                break
            while self.updater.remarks:
                bar.say(self.updater.remarks.pop(0))
            place.step += 1
            place.examples += targets.shape[0] * world.size
            place.clock = self._next_clock()
            self.rate = rate * self._gain
            place.seconds = seconds_before + time.perf_counter() - started
            done = place.step - step_before
            if bar.due:
                loss, accuracy = self.updater.totals.means()
                speed = self.updater.totals.num_examples * world.size / (place.seconds - seconds_before)
                num_steps = num_done + done + self.loader.num_batches_left()
                bar.show_step(place.epoch, num_done + done, num_steps, loss, self._accuracy(accuracy), speed)
            if self.noise is not None:
                self._follow_noise(self.noise)
            if recipe.log_every is not None and place.step % recipe.log_every == 0:
                self._record_step()
            stop = interruption.agreed((place.seconds - seconds_before) / done)
            if self.run is not None and (
                stop or (recipe.checkpoint_every is not None and place.step % recipe.checkpoint_every == 0)
            ):
                self._save(best=False)
            if stop:
                return True
        if world.device.type == "cuda":
            torch.cuda.synchronize()  # the time of the last kernels belongs to the epoch
        self._record_noise()
        place.seconds = seconds_before + time.perf_counter() - started
        place.epoch += 1
        return False

    def set_batch(self) -> None:
        """Take the batch that the recipe wants in this epoch; every worker changes at the same step."""
        wanted = batch_at(self.recipe, self.place.epoch, self.loader.num_examples, self.place.batch)
        virtual_workers = self.recipe.workers if self.rehearsed else 1
        self.loader.batch = wanted.local_batch * wanted.accumulation * virtual_workers
        self.updater.micro_batch = wanted.local_batch
        self.updater.sigma = noise_sigma(self.recipe, self._global_batch)

    def _follow_noise(self, noise: NoiseLog) -> None:
        """Keep the reading of the last update; when it is time, write what was read and let the batch follow it."""
        if self.updater.reading is not None:
            noise.note(self.updater.reading, self.updater.source, self.place, self._global_batch)
        if not noise.due(self.place.step):
            return
        self._record_noise()
        if self.recipe.growth_from_noise and noise.grown() and noise.current is not None:
            batch = grown_batch(self.recipe, self._global_batch, noise.current, self.loader.num_examples)
            if batch > self._global_batch:
                self.place.batch = batch
                self.set_batch()

    @property
    def _global_batch(self) -> int:
        return self.loader.batch * self.world.size

    @property
    def _gain(self) -> float:
        return self.optimizer.gain if isinstance(self.optimizer, AdaScale) else 1.0

    def _next_clock(self) -> float:
        if isinstance(self.optimizer, AdaScale):
            return self.optimizer.clock
        return self.place.clock + self._global_batch / self.recipe.global_batch

    # Evaluate.

    def test_results(self) -> Evaluation:
        """Evaluate the model as it is on the test data; all workers must call it."""
        self.updater.settle()
        self.recalibrated = self.recalibration.wanted(self.place.step - self.place.recalibrated_at)
        if self.recalibrated:
            self.recalibration.run()
            self.place.recalibrated_at = self.place.step
        autocast = autocast_for(self.recipe, self.world)
        return evaluate(self.task, self.model, self.test_loader, self.world, autocast=autocast, order=self.order)

    # Record.

    def _row(self, kind: str, speed: float, **results: Any) -> Row:
        place = self.place
        loss, accuracy = self._epoch_means()
        return Row(
            kind=kind, epoch=place.epoch, step=place.step, examples=place.examples, seconds=place.seconds,
            train_loss=loss, train_accuracy=self._accuracy(accuracy), images_per_second=speed,
            rate=self.rate, global_batch=self._global_batch,
            rehearsed=self.rehearsed, **self._noise_figures(kind),
            diverged=self.diverged or not math.isfinite(loss), **results,
        )  # fmt: skip

    def _epoch_means(self) -> tuple[float, float]:
        """Mean loss and accuracy of the epoch under way over all workers, its part before a restart included."""
        loss, correct, count = self._epoch_sums()
        return loss / max(1.0, count), correct / max(1.0, count)

    def _epoch_sums(self) -> list[float]:
        here = self.updater.totals.sums_over(self.world)
        return [before + now for before, now in zip(self.place.epoch_sums, here, strict=True)]

    def _record_step(self) -> None:
        row = self._row("step", self.place.examples / max(self.place.seconds, 1e-9))
        self._append(row)

    def _record_epoch(self, evaluation: Evaluation, seconds: float, num_examples: int) -> Row:
        row = self._row(
            "epoch", num_examples / max(seconds, 1e-9), test_loss=evaluation.loss, recalibrated=self.recalibrated,
            test_accuracy=evaluation.accuracy, test_correct=evaluation.correct if evaluation.has_metric else None,
        )  # fmt: skip
        self.place.epoch_sums = [0.0, 0.0, 0.0]
        self.updater.totals = Totals(self.world.device)
        target = self.recipe.target_accuracy
        self.place.reached = self.place.reached + 1 if target is not None and (row.test_accuracy or 0) >= target else 0
        result = evaluation.accuracy if evaluation.accuracy is not None else -evaluation.loss
        best = result > self.place.best
        if best:
            self.place.best = result
        # The row first: a row without its checkpoint is written again after a restart, a checkpoint without its row
        # would leave a hole.
        self._append(row)
        if self.run is not None:
            self._save(best=best)
        return row

    def _noise_figures(self, kind: str) -> dict[str, Any]:
        """Give the noise scale of an epoch's row."""
        found = None if self.noise is None or kind != "epoch" else self.noise.current
        if found is None:
            return {}
        return {"noise_scale": found.value, "noise_scale_low": found.low, "noise_scale_high": found.high}

    def _record_noise(self, *, sync: bool = False) -> None:
        """Write what was measured since the last time; a checkpoint must not be ahead of it."""
        rows = [] if self.noise is None else self.noise.flush()
        if self.run is not None and rows:
            run = self.run
            self.world.on_main(lambda: run.append_all(rows, sync=sync))

    def _append(self, row: Row) -> None:
        if self.run is not None:
            self.world.on_main(self.run.append, row)
        if self.writer is not None:
            write_row(self.writer, row)

    # Checkpoints.

    def _save(self, *, best: bool) -> None:
        assert self.run is not None
        self._record_noise(sync=True)
        self.updater.settle()
        sums = self._epoch_sums()
        states = self.world.all_gather_object(random_state())
        if self.world.is_main:
            state = {
                "format": 1,
                "task": self.task.name,
                "recipe": self.given.to_toml(),
                "place": {**asdict(self.place), "epoch_sums": sums},
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.updater.scaler.state_dict(),
                "loader": self.loader.state_dict(),
                "random": states,
                "noise": None if self.noise is None else self.noise.state_dict(),
            }
        else:
            state = {}
        folder, step, keep = self.run.checkpoints, self.place.step, self.recipe.keep
        self.world.on_main(lambda: save_checkpoint(folder, state, step=step, keep=keep, best=best))

    def _open_run(self, run: Run, resume: bool) -> None:
        """Start a new folder, or take up what an old one holds."""
        world = self.world
        has_rows = world.on_main(lambda: run.metrics_file.exists() and run.metrics_file.stat().st_size > 0)
        has_checkpoint = world.on_main(lambda: any(run.checkpoints.glob("step-*.pt")))
        if not resume and (has_rows or has_checkpoint):
            raise RunError(f"{run.folder} holds a run already; go on with --resume, or choose another folder")
        found = latest_checkpoint(run.checkpoints) if resume and has_checkpoint else None
        if found is not None:
            self._restore(*found)
        world.on_main(lambda: run.begin(self.given, self.task.name, rehearsed=self.rehearsed))
        world.on_main(run.forget_after, self.place.step)

    def _restore(self, file: Path, state: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.updater.scaler.load_state_dict(state["scaler"])
            self.loader.load_state_dict(state["loader"])
            self.place = replace(Place(), **state["place"])
            if self.noise is not None and state.get("noise") is not None:
                self.noise.load_state_dict(state["noise"])
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            first_line = str(error).splitlines()[0]
            raise CheckpointError(
                f"{file} does not fit task {self.task.name} and its recipe ({first_line}); resume with its own"
            ) from None
        if len(state["random"]) == self.world.size:
            restore_random_state(state["random"][self.world.rank])

    def _accuracy(self, value: float) -> float | None:
        return value if self.task.metric is not None else None


def _evaluation_batch(recipe: Recipe, world: World) -> int:
    # On a CPU a batch that stays in the cache is faster; a GPU wants to be filled.
    return min(recipe.batch, 256) if world.device.type == "cpu" else max(recipe.batch, 1024)
