"""The runs of a study: what each is asked, and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rueda import jobs as starter
from rueda.errors import RuedaError
from rueda.jobs import Job
from rueda.records import Recipe
from rueda.train.request import TrainAnswer, TrainRequest, train_job

if TYPE_CHECKING:
    from rueda.study.progress import StudyProgress
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

    def job(self, task: str) -> Job[TrainAnswer]:
        """Make its job, for a task by name or file."""
        return train_job(self.request(task))

    def part_of(self, task: Task) -> Task:
        """Give the task that it trains, made from one that is loaded."""
        return task


def make_runs(
    task: Task | str,
    runs: Sequence[PlannedRun],
    jobs: int,
    show: StudyProgress,
    *,
    started: Callable[[PlannedRun], None] = lambda run: None,
    finished: Callable[[], object],
) -> list[tuple[str, Exception]]:
    """Make the runs: ``jobs`` at a time in processes of their own, or one by one here if the task is in no file.

    Args:
        task: as the user gave it.
        runs: those that are not finished.
        jobs: processes at a time.
        show: told what happens.
        started: called before a run begins.
        finished: called when one has ended well.

    Returns:
        a line about each run that failed, with its error; the others are made all the same.
    """
    failures: list[tuple[str, Exception]] = []

    def start(run: PlannedRun) -> None:
        started(run)
        show.started(run)

    def finish(run: PlannedRun) -> None:
        finished()
        show.finished(run)

    def fail(run: PlannedRun, error: Exception) -> None:
        failures.append((f"{run.name}, seed {run.seed}: {_reason(error)}", error))
        show.finished(run, failures[-1][0])

    if isinstance(task, str):
        starter.run_many(
            runs, lambda run: run.job(task), jobs, started=start, finished=finish, failed=fail, waiting=show.waiting
        )
        return failures
    from rueda.train.job import train_task

    for run in runs:
        part = run.part_of(task)
        start(run)
        try:
            train_task(part, run.request(part.name))
        except Exception as error:  # as a process of its own would end alone, whatever it was
            fail(run, error)
        else:
            finish(run)
    return failures


def _reason(error: Exception) -> str:
    """Say in a line why a run failed."""
    text = str(error) if isinstance(error, RuedaError) else f"{type(error).__name__}: {error}"
    return " ".join(text.splitlines())
