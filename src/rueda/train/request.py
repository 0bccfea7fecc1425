"""The request that starts a training in other processes, and its answer; importing it does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rueda.files.remote import check_outlasts_process
from rueda.files.start_directory import located
from rueda.jobs import Job
from rueda.records import Recipe, Run
from rueda.records.recipe.recipe import RecipeFile
from rueda.records.recipe.values import parse_setting

SCRATCH_PREFIX = "rueda-fit-"
"""begins the name of the folder that holds the run of ``fit(workers=N)`` without a folder, until it returns"""


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A training: a task, its recipe and the run folder.

    The recipe is ``recipe`` (by default that of the run to resume, or the task's own), changed by ``recipe_file``, then
    by ``settings``, then by the options of the command.
    """

    task: str
    """the name of a built-in task, or the path of a file that defines one"""
    pickled_task: Path | None = None
    """the task itself, as :func:`rueda.train.on_workers.write_task` wrote it; ``task`` is then only its name"""
    recipe: Recipe | None = None
    recipe_file: RecipeFile | None = None
    settings: tuple[str, ...] = ()
    """fields of the recipe, as ``name=value``"""
    workers: int | None = None
    epochs: int | None = None
    target_accuracy: float | None = None
    target: float | None = None
    target_metric: str | None = None
    patience: int | None = None
    folder: Path | None = None
    """the run folder; by default ``runs/TASK-DATE``"""
    date: str = ""
    """the DATE of a default folder, which must be the same on all workers"""
    resume: bool = False
    resume_from: str = "last"
    """the checkpoint to resume from: last, best, or a number of updates"""
    checkpoints: str | None = None
    """the folder or the URL of the checkpoints; None: in the run folder, or where the run to resume has them"""
    track: tuple[str, ...] = ()
    """trackers to write to as well, by name"""
    rehearse: bool = False
    progress: bool = True
    directory: Path = field(default_factory=Path.cwd)
    """the directory to which ``folder`` is relative, even if the task file calls ``os.chdir``"""

    def __post_init__(self) -> None:
        check_outlasts_process(self.checkpoints)

    def known_workers(self) -> int | None:
        """Return the number of workers, or None if only the recipe of the task states it, which is not loaded here."""
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
        """Return the recipe of the run to resume; None for a new run, or one that never began."""
        if not self.resume or self.folder is None:
            return None
        folder = located(self.folder, self.directory)
        return Run(folder).recipe() if (folder / "recipe.toml").exists() else None


@dataclass(frozen=True, kw_only=True)
class TrainAnswer:
    """The outcome of a training that was not interrupted."""

    folder: Path
    """the run folder, which holds the figures and the checkpoints"""
    status: str = "finished"
    """finished, reached-target or diverged"""
    divergence: str = ""
    """what is no longer finite, if it diverged"""
    checkpoint: str | None = None
    """the path or the URL of the newest checkpoint, which is intact and finite, if it diverged after one was written"""


def is_scratch(folder: Path) -> bool:
    """Return whether a run folder is deleted with its training, so that nobody can resume it."""
    return folder.parent.name.startswith(SCRATCH_PREFIX)


def train_job(request: TrainRequest) -> Job[TrainAnswer]:
    """Return the job that runs a training."""
    return Job(function="rueda.train.job:train", request=request, answer=TrainAnswer)
