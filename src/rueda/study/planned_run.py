"""The trainings that a study or a learning curve consists of: what each is asked to do, and how they are executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rueda import jobs as starter
from rueda.errors import RuedaError, RunError
from rueda.jobs import Job
from rueda.records import Recipe
from rueda.study.progress import StudyProgress
from rueda.study.runs import check_same_recipe, is_finished
from rueda.train.request import TrainAnswer, TrainRequest, train_job
from rueda.world import instruction_sets

if TYPE_CHECKING:
    from rueda.tasks import Task


@dataclass(frozen=True)
class PlannedRun:
    """A training to execute, or to resume if it was interrupted."""

    name: str
    """the name of the row that it belongs to"""
    seed: int
    recipe: Recipe
    folder: Path

    def request(self, task: str) -> TrainRequest:
        """Return the request of this training. One worker is not rehearsed, so that its throughput is real."""
        return TrainRequest(
            task=task, recipe=self.recipe, folder=self.folder, resume=True, progress=False,
            rehearse=self.recipe.workers > 1,
        )  # fmt: skip

    def job(self, task: str) -> Job[TrainAnswer]:
        """Return the job that trains it in another process, for a task given by name or file."""
        return train_job(self.request(task))

    def trained_task(self, task: Task) -> Task:
        """Return the task that is trained, derived from the loaded one; here it is the same."""
        return task


def execute(
    task: Task | str,
    planned: Sequence[PlannedRun],
    jobs: int,
    *,
    progress: bool,
    finished: Callable[[], object],
    started: Callable[[], None] = lambda: None,
    notes: Sequence[str | None] = (),
) -> RunError | None:
    """Execute the runs that are not finished: ``jobs`` processes at a time, or one by one here for a Task object.

    Args:
        task: a name, a file, or the task itself.
        planned: all runs; a folder that holds another recipe is refused before anything is trained.
        jobs: how many processes train at the same time.
        progress: whether a bar or lines are shown.
        finished: called after each run that ended without an error.
        started: called before each run.
        notes: lines that are shown first.

    Returns:
        None, or an error that says how many runs failed and why the first one did; the others are completed first.
    """
    for run in planned:
        check_same_recipe(run.folder, run.recipe)
    remaining = [run for run in planned if not is_finished(run.folder, run.recipe)]
    failures: list[tuple[str, Exception]] = []
    with StudyProgress(speak=progress, total=len(planned), done=len(planned) - len(remaining)) as show:

        def start(run: PlannedRun) -> None:
            started()
            show.started(run)

        def finish(run: PlannedRun) -> None:
            finished()
            show.finished(run)

        def fail(run: PlannedRun, error: Exception) -> None:
            failures.append((f"{run.name}, seed {run.seed}: {_reason(error)}", error))
            show.finished(run, failures[-1][0])

        for line in filter(None, notes):
            show.say(line)
        if isinstance(task, str):
            _limit_instruction_sets(remaining, show)
            starter.run_many(
                remaining, lambda run: run.job(task), jobs, started=start, finished=finish, failed=fail,
                waiting=show.waiting,
            )  # fmt: skip
        else:
            from rueda.train.job import train_task

            for run in remaining:
                trained = run.trained_task(task)
                start(run)
                try:
                    train_task(trained, run.request(trained.name))
                except Exception as error:  # only this run fails, as it would in a process of its own
                    fail(run, error)
                else:
                    finish(run)
    if not failures:
        return None
    line, first = failures[0]
    failed = RunError(f"{len(failures)} of {len(planned)} runs failed ({line}); the same command tries them again")
    failed.__cause__ = first
    return failed


def _limit_instruction_sets(runs: Sequence[PlannedRun], show: StudyProgress) -> None:
    """Limit oneDNN for all runs where this CPU's AMX is faulty, and say so once: the output of a run is not shown."""
    if instruction_sets.has_gpu(os.environ):
        return
    for precision in {run.recipe.precision for run in runs}:
        limit = instruction_sets.limits(os.environ, precision).get(instruction_sets.VARIABLE)
        if limit is not None:
            os.environ[instruction_sets.VARIABLE] = limit
            show.say(instruction_sets.told(limit))


def _reason(error: Exception) -> str:
    """Describe an error in one line."""
    text = str(error) if isinstance(error, RuedaError) else f"{type(error).__name__}: {error}"
    return " ".join(text.splitlines())
