"""The training loop: one code path for 1 and N workers.

Phases: **prepare** (workers, data, model, optimizer), **restore** (the newest whole checkpoint), then for each
epoch **train**, **evaluate** on all workers, **record** (a row, a checkpoint) and **decide** whether to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from rueda.errors import NonFiniteError, RecipeError
from rueda.records import Recipe, Row, Run
from rueda.records.profile import NoiseScale
from rueda.tasks import Task, load_task
from rueda.tasks.loading import load_task_and_data
from rueda.train.evaluate import Evaluator
from rueda.train.interruption import Interruption
from rueda.train.recorder import Recorder
from rueda.train.training import Training
from rueda.world import open_world


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a training came to."""

    status: str
    """finished, reached-target, diverged or interrupted"""
    row: Row | None
    """the last epoch's figures"""
    model: nn.Module
    """the trained model, unwrapped"""
    recipe: Recipe
    """the recipe as it was run"""
    folder: Path | None
    """the run folder, if one was asked for"""
    signal: int | None = None
    """what interrupted it"""
    noise_scale: NoiseScale | None = None
    """the gradient noise scale at the end, if the recipe asked for it"""


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
    # Prepare.
    task = load_task(task) if isinstance(task, str) else task
    recipe = recipe or task.recipe
    world = open_world()
    if rehearse and world.size > 1:
        raise RecipeError(f"a rehearsal is one process, but {world.size} workers run; start one, or do not rehearse")
    if not rehearse and recipe.workers not in (1, world.size):
        raise RecipeError(
            f"the recipe is for {recipe.workers} workers, but {world.size} run; start {recipe.workers}, or set "
            f"workers = {world.size} and look at batch and rate again"
        )
    recipe = recipe if rehearse else recipe.change(workers=world.size)
    training = Training(load_task_and_data(task), recipe, world, rehearse=rehearse)
    # Restore.
    run = None if folder is None else Run(Path(folder))
    return run_epochs(training, Recorder(training, run, resume=resume, show=progress, tensorboard=tensorboard))


def run_epochs(training: Training, recorder: Recorder) -> Result:
    """Train until the recipe is done, the target is reached, the loss is gone, or a signal comes."""
    recipe, state, evaluator = training.recipe, training.state, Evaluator(training)
    row: Row | None = None
    status = "finished"
    with Interruption(training.world) as interruption, recorder.progress:
        while state.epoch < recipe.epochs:
            if not train_epoch(training, recorder, interruption):
                status = "interrupted"
                break
            row = recorder.record_epoch(evaluator.run())
            if row.diverged:
                status = "diverged"
                break
            if recipe.target_accuracy is not None and state.reached >= recipe.patience:
                status = "reached-target"
                break
    recorder.close()
    return Result(
        status=status, row=row, model=training.model, recipe=training.given_recipe,
        folder=None if recorder.run is None else recorder.run.folder, signal=interruption.signal,
        noise_scale=None if training.noise is None else training.noise.current,
    )  # fmt: skip


def train_epoch(training: Training, recorder: Recorder, interruption: Interruption) -> bool:
    """Make the updates of an epoch, or what is left of it; False if a signal stopped it, after a checkpoint."""
    training.begin_epoch()
    recorder.begin_epoch()
    ended = training.epoch_ended
    while not ended:
        try:
            result = training.step()
        except NonFiniteError:  # of averaged gradients: on all workers at the same step
            recorder.diverged = True
            break
        recorder.record_step(result)
        if interruption.agreed(recorder.seconds_per_step):
            if recorder.saved_step != training.state.step:  # as `checkpoint_every` has not just done
                recorder.save()
            return False
        ended = result.epoch_ended
    recorder.flush_noise()
    training.end_epoch()
    return True
