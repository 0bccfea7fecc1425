"""A training as a job: what ``rueda train`` does, in its own process or in those that it starts."""

from __future__ import annotations

from pathlib import Path

from rueda.files.start_directory import located
from rueda.jobs import Stopped
from rueda.records import Recipe
from rueda.tasks.loading import load_task
from rueda.tasks.naming import folder_name
from rueda.tasks.task import Task
from rueda.train.request import TrainAnswer, TrainRequest


def train(request: TrainRequest) -> TrainAnswer:
    """Load the task, make its recipe, and train on as many workers as were started; all of them call it.

    Raises:
        Stopped: a signal interrupted the training, which has saved.
    """
    return train_task(load_task(request.task), request)


def train_task(task: Task, request: TrainRequest) -> TrainAnswer:
    """Train a task that is loaded already, as the request says."""
    from rueda.train import fit

    folder = request.folder or Path("runs", f"{folder_name(task.name)}-{request.date}")
    folder = located(folder, request.directory)
    result = fit(
        task, resolved_recipe(task, request), folder=folder, resume=request.resume, tensorboard=request.tensorboard,
        progress=request.progress, rehearse=request.rehearse,
    )  # fmt: skip
    if result.status == "interrupted":
        raise Stopped(*([result.signal] if result.signal else []))
    return TrainAnswer(folder=folder)


def resolved_recipe(task: Task, request: TrainRequest) -> Recipe:
    """Make the recipe of a request."""
    recipe = request.recipe or request.recorded_recipe() or task.recipe
    if request.recipe_file is not None:
        recipe = request.recipe_file.recipe(base=recipe)
    recipe = recipe.with_settings(request.settings)
    options = {
        "workers": request.workers,
        "epochs": request.epochs,
        "target_accuracy": request.target_accuracy,
        "patience": request.patience,
    }
    return recipe.change(**{name: value for name, value in options.items() if value is not None})
