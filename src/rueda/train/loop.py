"""The training loop: one code path for 1 and N workers.

Phases: **prepare** (workers, data, model, optimizer), **restore** (the newest intact checkpoint), then for each epoch
**train**, **evaluate** on all workers, **record** (a row of figures, a checkpoint) and **decide** whether to continue.
When the workers of an elastic job change, all phases begin anew (:mod:`rueda.train.generations`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from rueda.errors import NonFiniteError, PeerLost, RecipeError, RunError, TaskError
from rueda.files.lock import held
from rueda.records import Recipe, Row, Run
from rueda.records.metric import LOSS
from rueda.records.profile import NoiseScale
from rueda.records.recipe.batches import check_counts
from rueda.tasks import Task, load_task
from rueda.tasks.loading import load_task_and_data
from rueda.terminal.metrics import write_value
from rueda.terminal.numbers import things
from rueda.train.divergence import ADVICE
from rueda.train.evaluate import Evaluator
from rueda.train.generations import Generations, WorldChanges, guard_of, is_run_of_this_job
from rueda.train.interruption import EvaluationStopped, Interruption
from rueda.train.recorder import Recorder
from rueda.train.recording.recovery import RolledBack
from rueda.train.trackers import checked_names
from rueda.train.training import Training
from rueda.world import World, elastic, open_world
from rueda.world.running import running_identity
from rueda.world.signals import Request

_LOCK_SECONDS = 60.0
"""how long a later generation waits for the lock of the run, which a lost process may hold until it is killed"""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The outcome of a training."""

    status: str
    """finished, reached-target, diverged or interrupted"""
    row: Row | None
    """the last epoch's figures"""
    model: nn.Module
    """the trained model, unwrapped; with ``ema_decay``, with the average of its weights"""
    recipe: Recipe
    """the recipe as it was run"""
    folder: Path | None
    """the run folder, if one was asked for"""
    signal: int | None = None
    """the signal that interrupted it"""
    noise_scale: NoiseScale | None = None
    """the gradient noise scale at the end, if the recipe asked for it"""
    divergence: str | None = None
    """what is no longer finite, if it diverged"""

    def __repr__(self) -> str:
        about = [self.status]
        if (row := self.row) is not None:
            about[0] += f" after {things(row.epoch, 'epoch')}"
            about += [] if row.test_loss is None else [f"test loss {row.test_loss:.4g}"]
            if row.metric.name != LOSS.name and (value := row.value()) is not None:
                about.append(f"test {row.metric.name} {write_value(row.metric, value)}")
            about.append(f"{row.mean_images_per_second:,.0f} {row.unit}/s")
        return f"Result({', '.join(about)}{f', folder {self.folder}' * (self.folder is not None)})"


def fit(
    task: Task | str,
    recipe: Recipe | None = None,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    resume_from: str | int = "last",
    progress: bool = True,
    tensorboard: bool = False,
    track: str | Sequence[str] = (),
    workers: int | None = None,
    rehearse: bool = False,
    checkpoints: Path | str | None = None,
) -> Result:
    """Train a task by a recipe on one worker or many, as ``rueda train`` does.

    >>> import rueda
    >>> task = rueda.load_task("linear")  # fit y = a x + b to 100 noisy points
    >>> result = rueda.fit(task, task.recipe.change(epochs=5), progress=False)
    >>> result
    Result(finished after 5 epochs, test loss ..., ... examples/s)
    >>> [round(parameter.item()) for parameter in result.model.parameters()]
    [10, 2]

    With ``workers=4`` the same training runs in four new processes of this machine, each with a quarter of the data.
    With ``rehearse=True`` as well, one process computes the updates of all four. A script that a launcher started
    (``rueda run -np 4 python train.py``) leaves ``workers`` out: there :func:`fit` trains on the workers that are
    already running. In an elastic job (``rueda run --min-np 1 --max-np 4 train.py``) it survives the loss of workers,
    and takes in those that come.

    Args:
        task: a task, the name of a built-in one, or the path of a file that defines one.
        recipe: how to train; by default the task's own.
        folder: the run folder to write; None writes nothing.
        resume: continue from the newest checkpoint in the folder, on any number of workers.
        resume_from: with ``resume``, the checkpoint to continue from: ``last``, ``best``, or a number of updates.
        progress: show a progress bar, or lines outside a terminal, on rank 0.
        tensorboard: the same as ``track="tensorboard"``.
        track: trackers to write to as well, by name: tensorboard, mlflow, wandb (:mod:`rueda.train.trackers`).
        workers: used instead of the recipe's ``workers``; several are started as processes unless they already run.
        rehearse: compute the updates of all workers in this one process (:mod:`rueda.train.rehearsal`).
        checkpoints: where the checkpoints go, if not into the run folder: a path, or a URL on object storage such as
            ``s3://bucket/folder`` (:mod:`rueda.files.remote`).
    """
    # Prepare.
    source, task = task, load_task(task) if isinstance(task, str) else task
    recipe = task.recipe if recipe is None else recipe
    _check_recipe(recipe)
    check_counts(workers=workers)
    trackers = checked_names(track, tensorboard=tensorboard)
    if trackers and folder is None:
        raise RunError("track", expected="a run folder beside it", got=None, do="pass folder=...")
    if checkpoints is not None and folder is None:
        raise RunError("checkpoints", expected="a run folder beside it", got=None, do="pass folder=...")
    recipe = recipe if workers is None else recipe.change(workers=workers)
    _check_target(task, recipe)
    is_elastic = elastic.is_elastic() and not rehearse
    if workers is not None and workers > 1 and not rehearse and not is_elastic and running_identity().size == 1:
        from rueda.train.on_workers import fit_on_workers

        path = None if folder is None else Path(folder)
        return fit_on_workers(
            source, recipe, folder=path, resume=resume, resume_from=str(resume_from), progress=progress, track=trackers,
            checkpoints=None if checkpoints is None else str(checkpoints),
        )  # fmt: skip
    where = None if checkpoints is None else str(checkpoints)
    run = None if folder is None else Run(Path(folder), checkpoint_folder=where)
    if run is None and recipe.on_divergence == "roll-back":
        raise RecipeError("on_divergence = 'roll-back' needs checkpoints to go back to; give a run folder")
    generations = Generations() if is_elastic else None
    if is_elastic and recipe.is_local:
        raise RecipeError(
            "sync_every and outer optimizers need the same workers from start to end, but this job is elastic; leave "
            "them out, or start the job without --min-np and --max-np"
        )
    if is_elastic:
        task = load_task_and_data(task)  # a fresh worker loads them before it joins the others, who would wait for it
        elastic.register()
    world = open_world()
    with RunLock(run) as lock:
        while True:
            try:
                with guard_of(generations):
                    settled = _recipe_for(world, recipe, run, generations, rehearse=rehearse)
                    lock.hold_on_main(world)
                    task = task if is_elastic else load_task_and_data(task)
                    training = Training(task, settled, world, rehearse=rehearse)
                    # Restore.
                    recorder = Recorder(
                        training, run, resume=str(resume_from) if resume else None, show=progress, track=trackers,
                        generations=generations,
                    )  # fmt: skip
                    return run_epochs(training, recorder)
            except (PeerLost, WorldChanges) as error:
                if generations is None:
                    raise
                failed = isinstance(error, PeerLost)
            training = recorder = None  # type: ignore[assignment]  # the next one needs their memory
            world = generations.next_world(failed=failed)


def _recipe_for(
    world: World, recipe: Recipe, run: Run | None, generations: Generations | None, *, rehearse: bool
) -> Recipe:
    """Return the recipe with which this world trains; every worker must call it.

    Raises:
        RecipeError: the recipe is for another number of workers, in a job that is not elastic.
    """
    if generations is not None:
        return _elastic_recipe(world, recipe, run, generations)
    recipe = world.broadcast_object(recipe)  # only rank 0's disk may hold the run that it was read from
    if rehearse and world.size > 1:
        raise RecipeError(
            f"a rehearsal runs in one process, but {world.size} workers are running; start one, or do not rehearse"
        )
    if not rehearse and recipe.workers not in (1, world.size):
        raise RecipeError(
            f"the recipe is for {recipe.workers} workers, but {world.size} run; pass workers={recipe.workers} to start "
            f"them, rehearse=True to rehearse them, or a recipe for {world.size}"
        )
    return recipe if rehearse else recipe.change(workers=world.size)


def _elastic_recipe(world: World, recipe: Recipe, run: Run | None, generations: Generations) -> Recipe:
    """Return the recipe of a generation: that with which the job began, with its global batch kept or scaled.

    A recipe for one worker is meant for as many as run when the job begins.
    """
    known = generations.recipe
    if world.is_main and known is None and run is not None and is_run_of_this_job(run):  # all others were lost
        known = run.recipe()
    meant = recipe.change(workers=world.size) if recipe.workers == 1 else recipe
    generations.recipe = known = world.broadcast_object(known or meant)
    return known if known.elastic_batch == "keep" else known.change(workers=world.size)


class RunLock:
    """Makes rank 0 the only process that writes a run, until the block ends; rank 0 may become another process."""

    def __init__(self, run: Run | None) -> None:
        self._run = run
        self._stack, self._holds = ExitStack(), False

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def hold_on_main(self, world: World) -> None:
        """Take the lock on rank 0, and release it on a process that is not rank 0 any more; all must call it."""
        if self._run is None:
            return
        if self._holds and not world.is_main:
            self._stack.close()
            self._holds = False
        if elastic.is_elastic():
            world.barrier()  # before another process takes it
        world.on_main(self._take, self._run.folder)

    def _take(self, folder: Path) -> None:
        until = time.monotonic() + (_LOCK_SECONDS if elastic.generation() > 0 else 0.0)
        while not self._holds:
            try:
                self._stack.enter_context(held(folder))
                self._holds = True
            except RunError:  # of a process of this job that is about to be killed, if the job is elastic
                if time.monotonic() >= until:
                    raise
                time.sleep(0.1)


def _check_recipe(recipe: object) -> None:
    if not isinstance(recipe, Recipe):
        do = "write rueda.Recipe(...) or task.recipe.change(...)"
        raise RecipeError("recipe", expected="a rueda.Recipe", got=type(recipe).__name__, do=do)


def _check_target(task: Task, recipe: Recipe) -> None:
    """Refuse a target for a metric that the task does not have."""
    names = [metric.name for metric in task.all_metrics]
    if recipe.target_accuracy is not None:
        primary = task.all_metrics[0] if names else None
        if primary is None or not primary.higher_is_better or primary.percent is False:
            got = "no metric" if primary is None else primary.name
            do = "set target, and target_metric, instead"
            raise TaskError(f"target_accuracy of task {task.name}", expected="a task with an accuracy", got=got, do=do)
    if recipe.target_metric is not None and recipe.target_metric not in (LOSS.name, *names):
        known = ", ".join([LOSS.name, *names])
        raise TaskError(f"target_metric of task {task.name}", expected=known, got=recipe.target_metric, do="choose one")


def run_epochs(training: Training, recorder: Recorder) -> Result:
    """Train until all epochs are done, the target is reached, the loss is not finite, or a signal arrives."""
    recipe, evaluator = training.recipe, Evaluator(training)
    row: Row | None = None
    status = "finished"
    with Interruption(training.world) as interruption, recorder.display.progress, recorder.finishing():
        while not training.is_over:
            try:
                if not train_epoch(training, recorder, interruption):
                    status = "interrupted"
                    break
                try:
                    evaluation = evaluator.run(interruption if recorder.divergence is None else None)
                except EvaluationStopped:
                    training.reopen_epoch()
                    if interruption.changes and interruption.signal is None:
                        recorder.commit()
                        raise WorldChanges from None
                    if recorder.save_on_request(Request.STOP):
                        status = "interrupted"
                        break
                    continue  # the weights are not finite: the epoch ends as a diverged one
                row = recorder.record_epoch(evaluation)
            except RolledBack:  # the workers were no longer equal: the training is at its last checkpoint again
                continue
            if row.diverged:
                if recorder.recovery.roll_back():
                    continue
                status = "diverged"
                break
            has_target = recipe.target_accuracy is not None or recipe.target is not None
            if has_target and training.state.reached >= recipe.patience:
                status = "reached-target"
                break
    recorder.close()
    training.updater.settle()
    if training.average is not None:
        training.average.swap()  # the model of the result is the one that was evaluated
    divergence = recorder.divergence or f"nan or inf in the training loss: {ADVICE}"
    return Result(
        status=status, row=row, model=training.whole_model(), recipe=training.given_recipe,
        folder=None if recorder.run is None else recorder.run.folder, signal=interruption.signal,
        noise_scale=None if training.noise is None else training.noise.current,
        divergence=divergence if status == "diverged" else None,
    )  # fmt: skip


def train_epoch(training: Training, recorder: Recorder, interruption: Interruption) -> bool:
    """Make the remaining updates of an epoch; return False if a signal stopped it, after writing a checkpoint."""
    training.begin_epoch()
    recorder.epoch.begin()
    ended = training.epoch_ended
    while not ended:
        try:
            result = training.step(timer=recorder.comparison.clock)
        except NonFiniteError as error:  # gradients are averaged, so all workers raise it at the same step
            recorder.recovery.divergence = str(error)
            break
        recorder.record_step(result)
        if recorder.divergence is not None:  # found when a checkpoint was to be written
            break
        request = interruption.agreed(
            recorder.epoch.seconds_per_step, due=recorder.checkpoint_due, commit=recorder.commit_due
        )  # fmt: skip
        if request is not None:
            if not recorder.save_on_request(request):
                break
            if request is Request.STOP:
                return False
        ended = result.epoch_ended
        if (interruption.commits and not ended) or interruption.changes:
            recorder.commit()
            if interruption.changes:
                raise WorldChanges
    recorder.flush_noise()
    recorder.commit()  # an evaluation may take longer than the time between two commits
    training.end_epoch()
    return True
