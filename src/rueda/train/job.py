"""Training as a job of :mod:`rueda.jobs`, which ``rueda train`` runs in its own process or in worker processes."""

from __future__ import annotations

import sys
from pathlib import Path

from rueda.errors import RecipeError
from rueda.files.remote import any_path
from rueda.files.start_directory import located
from rueda.jobs import Stopped
from rueda.records import Recipe, Run
from rueda.tasks.loading import load_task
from rueda.tasks.naming import folder_name
from rueda.tasks.task import Task
from rueda.train.request import TrainAnswer, TrainRequest
from rueda.world.running import running_identity


def train(request: TrainRequest) -> TrainAnswer:
    """Load the task, resolve its recipe, and train on the workers that were started; every worker calls it.

    Raises:
        Stopped: a signal interrupted the training, after its checkpoint was written.
    """
    if request.pickled_task is None:
        return train_task(load_task(request.task), request)
    from rueda.train.on_workers import read_task

    return train_task(read_task(request.pickled_task), request)


def train_task(task: Task, request: TrainRequest) -> TrainAnswer:
    """Train a task that has been loaded."""
    from rueda.train import fit
    from rueda.train.checkpoint import find_checkpoint

    folder = request.folder or Path("runs", f"{folder_name(task.name)}-{request.date}")
    folder = located(folder, request.directory)
    where = None if request.checkpoints is None else any_path(request.checkpoints)
    if isinstance(where, Path):
        where = located(where, request.directory)
    recipe = resolved_recipe(task, request)
    if recipe.rate_note and request.progress and running_identity().rank == 0:
        print(recipe.rate_note, file=sys.stderr, flush=True)
    result = fit(
        task, recipe, folder=folder, resume=request.resume, resume_from=request.resume_from,
        track=request.track, progress=request.progress, rehearse=request.rehearse,
        checkpoints=None if where is None else str(where),
    )  # fmt: skip
    if result.status == "interrupted":
        raise Stopped(*([result.signal] if result.signal else []), saved=True)
    if result.divergence is None:
        return TrainAnswer(folder=folder, status=result.status)
    newest = find_checkpoint(Run(folder).checkpoints, "last")
    whole = None if newest is None else str(newest)
    return TrainAnswer(folder=folder, status=result.status, divergence=result.divergence, checkpoint=whole)


def resolved_recipe(task: Task, request: TrainRequest) -> Recipe:
    """Return the recipe of a request: the initial recipe, changed by the recipe file, settings and options in turn."""
    recipe = request.recipe or request.recorded_recipe() or task.recipe
    if request.recipe_file is not None:
        recipe = request.recipe_file.recipe(base=recipe)
    recipe = recipe.with_settings(request.settings)
    options = {
        "workers": request.workers,
        "epochs": request.epochs,
        "target_accuracy": request.target_accuracy,
        "target": request.target,
        "target_metric": request.target_metric,
        "patience": request.patience,
    }
    if request.target is not None:  # instead of the target accuracy that the task's own recipe may have
        recipe = recipe.change(target_accuracy=None)
    recipe = recipe.change(**{name: value for name, value in options.items() if value is not None})
    if request.patience is not None and recipe.target_accuracy is None and recipe.target is None:
        raise RecipeError("--patience counts epochs at the target accuracy, which is not set; add --target-accuracy")
    return recipe
