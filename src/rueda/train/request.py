"""What ``rueda train`` asks of the processes that train, and what they answer. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rueda.files.start_directory import located
from rueda.jobs import Job
from rueda.records import Recipe, Run
from rueda.records.recipe.recipe import RecipeFile
from rueda.records.recipe.values import parse_setting


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A training: a task, its recipe and the run folder.

    The recipe is ``recipe`` (by default the recorded one of a run to go on with, or the task's own), changed by
    ``recipe_file``, then by ``settings``, then by the options of the command.
    """

    task: str
    """the name of a built-in task, or the path of a file that defines one"""
    recipe: Recipe | None = None
    recipe_file: RecipeFile | None = None
    settings: tuple[str, ...] = ()
    """fields of the recipe, as ``name=value``"""
    workers: int | None = None
    epochs: int | None = None
    target_accuracy: float | None = None
    patience: int | None = None
    folder: Path | None = None
    """the run folder; by default ``runs/TASK-DATE``"""
    date: str = ""
    """the DATE of a default folder, which must be the same on all workers"""
    resume: bool = False
    tensorboard: bool = False
    rehearse: bool = False
    progress: bool = True
    directory: Path = field(default_factory=Path.cwd)
    """where the request was made: the folder is relative to it, wherever a task file may go"""

    def known_workers(self) -> int | None:
        """Give the number of workers, as far as it is known without the task; None: its own recipe says it."""
        if self.workers is not None:
            return self.workers
        settings = [setting for setting in self.settings if parse_setting(setting)[0] == "workers"]
        if settings:
            return Recipe().with_settings(settings).workers
        if self.recipe_file is not None and "workers" in (stated := self.recipe_file.fields()):
            return int(stated["workers"])
        start = self.recipe or self.recorded_recipe()
        return None if start is None else start.workers

    def recorded_recipe(self) -> Recipe | None:
        """Give the recipe of the run to go on with; None for a new run, or one that never began."""
        if not self.resume or self.folder is None:
            return None
        folder = located(self.folder, self.directory)
        return Run(folder).recipe() if (folder / "recipe.toml").exists() else None


@dataclass(frozen=True, kw_only=True)
class TrainAnswer:
    """What a training came to that was not stopped."""

    folder: Path
    """the run folder, which says the rest"""


def train_job(request: TrainRequest) -> Job[TrainAnswer]:
    """Make the job of a training."""
    return Job(function="rueda.train.job:train", request=request, answer=TrainAnswer)
