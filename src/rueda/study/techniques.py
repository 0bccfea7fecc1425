"""The technique table: what N workers do to the accuracy, and which technique brings it back.

Each row is a named recipe (or several combined), rehearsed: N virtual workers in one process give the numbers of N
real ones (:mod:`rueda.train.rehearsal`). One worker trains in earnest. Phases: **plan** the runs, **run** what is not
finished, **summarise** after every run, and on request **confirm** the best row on real processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rueda import jobs as starter
from rueda.errors import RecipeError, RuedaError, RunError, TaskError
from rueda.files.lock import held
from rueda.records.recipe.batches import check_counts
from rueda.records.study import Study, StudyRow
from rueda.study.conditions import Condition
from rueda.study.planned_run import make_runs
from rueda.study.planning import StudyRequest, plan_job, plan_task
from rueda.study.progress import StudyProgress
from rueda.study.runs import check_same_recipe, is_finished, recorded_recipe, summarise
from rueda.study.study_folder import StudyFolder, runs_of
from rueda.study.task_file import sign
from rueda.train.request import TrainRequest, train_job

if TYPE_CHECKING:
    from rueda.tasks import Task


class RunsFailed(RunError):
    """Some runs of a study failed; ``study`` is what the others came to."""

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
) -> Study:
    """Run named recipes side by side; the twin of ``rueda study``.

    What is finished in the folder is not run again, what was interrupted goes on; ``study.json`` there is written
    after every run.

    Args:
        task: the name of a built-in task or the path of a file that defines one. A :class:`Task` itself is trained in
            this process, run after run.
        workers: how many workers are rehearsed.
        rows: named recipes, joined by ``+`` where combined; by default all, and some combinations.
        seeds: trainings of each row; the first has the recipe's own seed.
        epochs: of all rows (``longer-training`` multiplies them); by default the task's own.
        folder: where to write; by default ``runs/study-TASK-N``.
        settings: fields of the base recipe, as ``name=value``.
        jobs: runs at a time.
        confirm: run the best row on real processes, too; the task must have a name or a file.
        progress: show a bar or lines.

    Raises:
        RunError: the folder holds another study or another process writes there.
        RunsFailed: a run failed, or the confirmation; the others are finished first.
        Stopped: by Ctrl-C or SIGTERM; what ran has saved.
    """
    check_counts(workers=workers, seeds=seeds, jobs=jobs)
    if confirm and workers == 1:
        raise RecipeError("--confirm runs the best row of many workers on real processes, got 1 worker; leave it out")
    if confirm and not isinstance(task, str):
        raise TaskError(f"workers can be started for a task by name or file only, got {type(task).__name__}")
    # Plan.
    request = StudyRequest(
        task=task if isinstance(task, str) else task.name, workers=workers, rows=None if rows is None else tuple(rows),
        seeds=seeds, epochs=epochs, settings=tuple(settings), folder=None if folder is None else Path(folder),
    )  # fmt: skip
    plan = starter.run(plan_job(request), show=progress) if isinstance(task, str) else plan_task(task, request)
    with held(plan.folder):
        table = StudyFolder(plan, task, workers)
        every_seed = range(plan.base.seed, plan.base.seed + seeds)
        planned = [run for one in plan.conditions for run in runs_of(plan.folder, one, every_seed)]
        for run in planned:
            check_same_recipe(run.folder, run.recipe)
        todo = [run for run in planned if not is_finished(run.folder, run.recipe)]
        # Run.
        with StudyProgress(speak=progress, total=len(planned), done=len(planned) - len(todo)) as show:
            for line in plan.left_out:
                show.say(line)
            table.write()
            failures = make_runs(
                task, todo, jobs, show, started=lambda run: sign(run.folder, task, plan.task_file), finished=table.write
            )
            study = table.write()
            best = study.best()
            if confirm and not failures:
                show.say(
                    f"{best.name} on {workers:,} real workers:"
                    if best is not None
                    else f"nothing to confirm: no row of {workers:,} workers ended without diverging"
                )
        if failures:
            line, first = failures[0]
            raise RunsFailed(
                f"{len(failures)} of {len(planned)} runs failed ({line}); the others stand in {plan.folder}", study
            ) from first
        # Confirm.
        if confirm and best is not None:
            study = _confirm(table, best, str(task), plan.task_file, progress)
        return study


def _confirm(table: StudyFolder, best: StudyRow, task: str, checksum: str | None, progress: bool) -> Study:
    """Train the best row on as many processes, and add it as a row of its own."""
    folder = table.root / best.runs[0]
    recipe = recorded_recipe(folder)
    assert recipe is not None
    real = folder.with_name(f"{folder.name}-real")
    check_same_recipe(real, recipe)
    if not is_finished(real, recipe):
        sign(real, task, checksum)
        request = TrainRequest(task=task, recipe=recipe, folder=real, resume=True, progress=progress)
        try:
            starter.run(train_job(request), workers=recipe.workers)
        except RuedaError as error:
            raise RunsFailed(
                f"{best.name} on {best.workers} real workers failed ({error}); look at {real}", table.write()
            ) from error
    row = summarise(
        Condition(f"{best.name} (real)", best.summary, recipe), table.root, [(recipe.seed, real)], rehearsed=False
    )
    if row is not None:
        table.kept[row.name] = row
    return table.write()
