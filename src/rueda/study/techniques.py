"""The study of techniques: how much accuracy is lost with N workers, and which technique restores it.

Each row is a named recipe, or several combined, and is rehearsed: N virtual workers in one process compute the same
numbers as N real ones (:mod:`rueda.train.rehearsal`). The row with one worker is not rehearsed. Phases: **plan** the
runs, **run** those that are not finished and summarise after each, on request **confirm** the best row on N processes
and with fresh seeds: the best of many rows is too good by chance on the seeds by which it was chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rueda import jobs as starter
from rueda.errors import RecipeError, RuedaError, RunError, TaskError
from rueda.files.lock import held
from rueda.jobs import Job
from rueda.records.recipe.batches import check_counts
from rueda.records.study import REAL, Study, StudyRow
from rueda.study.conditions import Condition
from rueda.study.planned_run import execute
from rueda.study.planning import StudyPlan, StudyRequest, plan_task
from rueda.study.runs import check_same_recipe, is_finished, recorded_recipe, summarise
from rueda.study.study_folder import StudyFolder, runs_of
from rueda.study.task_file import refuse_changed_file
from rueda.tasks.half_precision import protect_before_loading
from rueda.train.request import TrainRequest, train_job

if TYPE_CHECKING:
    from rueda.tasks import Task

FRESH = 1000
"""the seeds of a confirmation are so far from those by which the best row was chosen"""


class RunsFailed(RunError):
    """Some runs of a study failed; ``study`` holds the rows of the others."""

    def __init__(self, message: str, study: Study) -> None:
        super().__init__(message)
        self.study = study


def study_techniques(
    task: Task | str,
    workers: int,
    *,
    rows: Sequence[str] | None = None,
    seeds: int = 1,
    epochs: int | None = None,
    folder: Path | str | None = None,
    settings: Sequence[str] = (),
    jobs: int = 2,
    confirm: bool = False,
    progress: bool = True,
    tolerance: float | None = None,
) -> Study:
    """Train named recipes and compare them by the task's primary metric, as ``rueda study`` does.

    Finished runs in the folder are not repeated, interrupted ones are resumed; ``study.json`` is written after every
    run.

    Args:
        task: a built-in name, a task file, or a :class:`Task`, which is trained in this process, one run at a time.
        workers: the number of workers to rehearse.
        rows: named recipes, joined by ``+`` where combined; by default all of them and some combinations.
        seeds: trainings of each row; the first uses the seed of the recipe.
        epochs: number of epochs of all rows (``longer-training`` multiplies it); by default that of the task's recipe.
        folder: where to write; by default ``runs/study-TASK-N``.
        settings: fields of the base recipe, as ``name=value``.
        jobs: trainings that run at the same time.
        confirm: train the best row on real processes, too, with as many seeds, none of which chose it; this requires a
            task name or file.
        progress: show a bar or lines.
        tolerance: how much worse a row may be than one worker and still be kept: 0.01, the default, is one point of a
            metric in percent, and otherwise one percent of one worker's value; by default that of the task.

    Raises:
        RunError: the folder holds another study, or another process writes to it.
        RunsFailed: a run or the confirmation failed; the other runs are completed first.
        Stopped: Ctrl-C or SIGTERM interrupted the study; the runs have saved checkpoints.
    """
    check_counts(workers=workers, seeds=seeds, jobs=jobs)
    if confirm and workers == 1:
        raise RecipeError("--confirm runs the best row of many workers on real processes, got 1 worker; leave it out")
    if confirm and not isinstance(task, str):
        raise TaskError(f"workers can be started for a task by name or file only, got {type(task).__name__}")
    if workers == 1 and rows is None:
        raise RecipeError("workers", expected="2 or more", got=1, do="or name the rows to train on one worker: --rows")
    # Plan.
    request = StudyRequest(
        task=task if isinstance(task, str) else task.name, workers=workers, rows=None if rows is None else tuple(rows),
        seeds=seeds, epochs=epochs, settings=tuple(settings), folder=None if folder is None else Path(folder),
        tolerance=tolerance,
    )  # fmt: skip
    if isinstance(task, str):
        job = Job(function="rueda.study.planning:plan", request=request, answer=StudyPlan)
        protect_before_loading(task)  # before all jobs, so that one line reports it
        plan = starter.run(job, show=progress)
    else:
        plan = plan_task(task, request)
    with held(plan.folder):
        table = StudyFolder(plan, task, workers)
        every_seed = range(plan.base.seed, plan.base.seed + seeds)
        planned = [run for one in plan.conditions for run in runs_of(plan.folder, one, every_seed)]
        table.write()
        # Run.
        failed = execute(
            task, planned, jobs, progress=progress, notes=(plan.base.rate_note, *plan.left_out), finished=table.write,
            started=lambda: refuse_changed_file(task, plan.task_file),
        )  # fmt: skip
        study = table.write()
        if failed is not None:
            raise RunsFailed(str(failed), study) from failed.__cause__
        # Confirm.
        if not confirm:
            return study
        best = study.best()
        if progress:
            nothing = f"nothing to confirm: no row of {workers:,} workers ended without diverging"
            print(nothing if best is None else f"{best.name} on {workers:,} real workers:", file=sys.stderr)
        fresh = range(plan.base.seed + FRESH, plan.base.seed + FRESH + seeds)
        return study if best is None else _confirm(table, best, fresh, str(task), plan.task_file, progress)


def _confirm(
    table: StudyFolder, best: StudyRow, seeds: Sequence[int], task: str, checksum: str | None, progress: bool
) -> Study:
    """Train the best row on as many processes as it has workers, with other seeds, and add the result as a row."""
    chosen = recorded_recipe(table.root / best.runs[0])
    assert chosen is not None
    planned = [
        (chosen.change(seed=seed), table.root / "runs" / f"{best.name}-seed{seed}-real")
        for seed in seeds
    ]  # fmt: skip
    for recipe, folder in planned:
        check_same_recipe(folder, recipe)
    for recipe, folder in planned:
        if is_finished(folder, recipe):
            continue
        refuse_changed_file(task, checksum)
        request = TrainRequest(task=task, recipe=recipe, folder=folder, resume=True, progress=progress)
        try:
            starter.run(train_job(request), workers=recipe.workers)
        except RuedaError as error:
            raise RunsFailed(
                f"{best.name} on {best.workers} real workers failed ({error}); look at {folder}", table.write()
            ) from error
    runs = [(recipe.seed, folder) for recipe, folder in planned]
    row = summarise(Condition(f"{best.name}{REAL}", best.summary, chosen), table.root, runs, rehearsed=False)
    if row is not None:
        table.kept[row.name] = row
    return table.write()
