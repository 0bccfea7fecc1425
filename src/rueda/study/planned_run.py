"""The runs of a study before they are made, and how those of a task that exists in no file are made in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rueda.records import Recipe
from rueda.train.request import TrainRequest

if TYPE_CHECKING:
    from rueda.tasks import Task


@dataclass(frozen=True)
class PlannedRun:
    """A run to make."""

    name: str
    """of its row"""
    seed: int
    recipe: Recipe
    folder: Path

    def request(self, task: str) -> TrainRequest:
        """Ask for this run; one that was interrupted goes on. One worker is not rehearsed: its images/s are real."""
        return TrainRequest(
            task=task, recipe=self.recipe, folder=self.folder, resume=True, progress=False,
            rehearse=self.recipe.workers > 1,
        )  # fmt: skip


def run_here(
    task: Task,
    runs: Sequence[PlannedRun],
    *,
    started: Callable[[PlannedRun], None],
    finished: Callable[[PlannedRun], None],
    failed: Callable[[PlannedRun, Exception], None],
) -> None:
    """Make the runs one after the other in this process.

    Raises:
        Stopped: a signal interrupted a run, which has saved.
    """
    from rueda.train.job import train_task

    for run in runs:
        started(run)
        try:
            train_task(task, run.request(task.name))
        except Exception as error:  # as a process of its own would end alone, whatever it was
            failed(run, error)
        else:
            finished(run)
