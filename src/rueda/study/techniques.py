"""The technique table: what N workers do to the accuracy, and which technique brings it back.

Each row is a named recipe (or several combined), rehearsed: N virtual workers in one process give the numbers of N
real ones (:mod:`rueda.train.rehearsal`). One worker trains in earnest. Phases: **plan** the runs, **run** what is not
finished, **summarise** after every run, and on request **confirm** the best row on real processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rueda.errors import RecipeError, RunError, TaskError, explain
from rueda.records import Recipe
from rueda.records.environment import environment
from rueda.records.lock import held
from rueda.records.study import Study, StudyRow
from rueda.study.conditions import Condition, conditions
from rueda.study.pool import Job, run_here, run_in_processes
from rueda.study.progress import StudyProgress, run_line
from rueda.study.runs import check_same_recipe, is_finished, recorded_recipe, summarise
from rueda.tasks import Task, load_task

Launch = Callable[[str, Recipe, Path], int]
"""trains a task by a recipe into a folder on real processes and gives their exit status"""


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
    confirm: Launch | None = None,
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
        confirm: how to run the best row on real processes; None does not.
        progress: show a bar or lines.

    Raises:
        RunError: the folder holds another study or another process writes there, or a run failed; the others are
            finished first.
    """
    for name, value in (("workers", workers), ("seeds", seeds), ("jobs", jobs)):
        if value < 1:
            raise RecipeError(explain(name, expected="1 or more", got=value, do="correct it"))
    # Plan.
    loaded = load_task(task) if isinstance(task, str) else task
    if loaded.metric is None:
        raise TaskError(f"a study compares accuracy, which task {loaded.name} has not; try --gd or give it a metric")
    base = loaded.recipe.with_settings(settings).change(workers=1, target_accuracy=None)
    base = base if epochs is None else base.change(epochs=epochs)
    chosen, left_out = conditions(loaded, base, workers, rows)
    root = Path(folder) if folder is not None else Path("runs", f"study-{loaded.name}-{workers}")
    with held(root):
        book = _Book(root, loaded.name, workers, base.epochs)
        planned = [job for one in chosen for job in _jobs(one, root, range(base.seed, base.seed + seeds))]
        for job in planned:
            check_same_recipe(job.folder, job.recipe)
        todo = [job for job in planned if not is_finished(job.folder, job.recipe)]
        book.write(chosen)
        # Run.
        failures: list[str] = []
        with StudyProgress(speak=progress, total=len(planned), done=len(planned) - len(todo)) as show:
            for line in left_out:
                show.say(line)

            def finished(job: Job) -> None:
                book.write(chosen)
                show.finished(job, run_line(job))

            def failed(job: Job, reason: str) -> None:
                failures.append(f"{job.name}, seed {job.seed}: {reason}")
                show.finished(job, failures[-1])

            if isinstance(task, str):
                run_in_processes(
                    task, todo, jobs, started=show.started, finished=finished, failed=failed, waiting=show.waiting
                )  # fmt: skip
            else:
                run_here(task, todo, started=show.started, finished=finished)
        study = book.write(chosen)
        if failures:
            raise RunError(f"{len(failures)} of {len(planned)} runs failed ({failures[0]}); the others stand in {root}")
        # Confirm.
        best = study.best()
        if confirm is not None and best is not None:
            study = _confirm(book, chosen, best, task if isinstance(task, str) else loaded.name, confirm)
        return study


class _Book:
    """The study's folder and what stands in its ``study.json``."""

    def __init__(self, root: Path, task: str, workers: int, epochs: int) -> None:
        self.root, self._file = root, root / "study.json"
        self._study = Study(
            task=task, workers=workers, epochs=epochs, environment=environment(),
            command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        )  # fmt: skip
        self.kept: dict[str, StudyRow] = {}
        """rows that an earlier study in this folder made"""
        if self._file.exists():
            old = Study.load(self._file)
            was, now = ((one.task, one.workers, one.epochs) for one in (old, self._study))
            if was != now:
                words = "task {}, {} workers, {} epochs"
                raise RunError(
                    f"{root} holds a study of {words.format(*was)}, now asked: {words.format(*now)}; "
                    "choose another --folder"
                )
            self.kept = {row.name: row for row in old.rows}

    def write(self, chosen: Sequence[Condition]) -> Study:
        """Summarise what is finished and write ``study.json``; rows of earlier studies stay."""
        found = dict(self.kept)
        for one in chosen:
            runs = [
                (job.seed, job.folder)
                for job in _jobs(one, self.root, _seeds_in(self.root, one.name))
                if is_finished(job.folder, job.recipe)
            ]
            row = summarise(one, self.root, runs, rehearsed=one.recipe.workers > 1)
            if row is not None:
                found[one.name] = row
        order = {one.name: number for number, one in enumerate(chosen)}
        rows = sorted(found.values(), key=lambda row: order.get(row.name, len(order)))
        study = Study(**{**vars(self._study), "rows": tuple(rows)}).judged()
        study.save(self._file)
        return study


def _jobs(one: Condition, root: Path, seeds: Sequence[int]) -> list[Job]:
    return [
        Job(one.name, seed, one.recipe.change(seed=seed), root / "runs" / f"{one.name}-seed{seed}") for seed in seeds
    ]


def _seeds_in(root: Path, name: str) -> list[int]:
    """List the seeds of a row that the folder holds."""
    texts = [folder.name.removeprefix(f"{name}-seed") for folder in (root / "runs").glob(f"{name}-seed*")]
    return sorted(int(text) for text in texts if text.isdigit())


def _confirm(book: _Book, chosen: Sequence[Condition], best: StudyRow, task: str, launch: Launch) -> Study:
    """Train the best row on as many processes, and add it as a row of its own."""
    folder = book.root / best.runs[0]
    recipe = recorded_recipe(folder)
    assert recipe is not None
    real = folder.with_name(f"{folder.name}-real")
    check_same_recipe(real, recipe)
    if not is_finished(real, recipe):
        status = launch(task, recipe, real)
        if status > 128:
            raise KeyboardInterrupt
        if status != 0:
            raise RunError(f"{best.name} on {best.workers} real workers ended with status {status}; look at {real}")
    condition = Condition(f"{best.name} (real)", best.summary, recipe)
    row = summarise(condition, book.root, [(recipe.seed, real)], rehearsed=False)
    if row is not None:
        book.kept[row.name] = row
    return book.write(chosen)
