"""The technique table: what N workers do to the accuracy, and which technique brings it back.

Each row is a named recipe (or several combined), rehearsed: N virtual workers in one process give the numbers of N
real ones (:mod:`rueda.train.rehearsal`). One worker trains in earnest. Phases: **plan** the runs, **run** what is not
finished, **summarise** after every run, and on request **confirm** the best row on real processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rueda.data.partition import check_batch
from rueda.errors import DataError, RecipeError, RunError, TaskError, explain
from rueda.files.lock import held
from rueda.records import Recipe
from rueda.records.study import Study, StudyRow
from rueda.study.book import Book
from rueda.study.conditions import Condition, conditions
from rueda.study.pool import STOPS, Job, Stopped, run_here, run_in_processes
from rueda.study.progress import StudyProgress, reason_of, run_line
from rueda.study.runs import check_same_recipe, is_finished, recorded_recipe, summarise
from rueda.study.task_file import checksum_of, sign
from rueda.tasks import Task, load_task
from rueda.tasks.naming import folder_name

Launch = Callable[[str, Recipe, Path], int]
"""trains a task by a recipe into a folder on real processes and gives their exit status"""


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
        RunError: the folder holds another study or another process writes there.
        RunsFailed: a run failed, or the confirmation; the others are finished first.
        KeyboardInterrupt: Ctrl-C, or :class:`~rueda.study.pool.Stopped` by SIGTERM; what ran has saved.
    """
    for name, value in (("workers", workers), ("seeds", seeds), ("jobs", jobs)):
        if value < 1:
            raise RecipeError(explain(name, expected="1 or more", got=value, do="correct it"))
    # Plan.
    loaded = load_task(task) if isinstance(task, str) else task
    if loaded.metric is None:
        raise TaskError(f"a study compares accuracy, which task {loaded.name} has not; give it a metric")
    base = loaded.recipe.with_settings(settings).change(workers=1, target_accuracy=None)
    base = base if epochs is None else base.change(epochs=epochs)
    chosen, left_out = conditions(loaded, base, workers, rows)
    if confirm is not None and workers == 1:
        raise RecipeError("--confirm runs the best row of many workers on real processes, got 1 worker; leave it out")
    root = Path(folder) if folder is not None else Path("runs", f"study-{folder_name(loaded.name)}-{workers}")
    checksum = checksum_of(task)
    with held(root):
        book = Book(root, task, loaded.name, base, workers, checksum)
        planned = [job for one in chosen for job in book.jobs(one, range(base.seed, base.seed + seeds))]
        for job in planned:
            check_same_recipe(job.folder, job.recipe)
        todo = [job for job in planned if not is_finished(job.folder, job.recipe)]
        # Run.
        failures: list[tuple[str, Exception]] = []
        with StudyProgress(speak=progress, total=len(planned), done=len(planned) - len(todo)) as show:
            for line in left_out:
                show.say(line)
            _check_batches(loaded, todo)
            book.write(chosen)

            def started(job: Job) -> None:
                sign(job.folder, task, checksum)
                show.started(job)

            def finished(job: Job) -> None:
                book.write(chosen)
                show.finished(job, run_line(job))

            def failed(job: Job, error: Exception) -> None:
                failures.append((f"{job.name}, seed {job.seed}: {reason_of(error)}", error))
                show.finished(job, failures[-1][0])

            if isinstance(task, str):
                run_in_processes(
                    task, todo, jobs, started=started, finished=finished, failed=failed, waiting=show.waiting
                )  # fmt: skip
            else:
                run_here(task, todo, started=started, finished=finished, failed=failed)
            study = book.write(chosen)
            best = study.best()
            if confirm is not None and best is None:
                show.say(f"nothing to confirm: no row of {workers:,} workers ended without diverging")
        if failures:
            line, first = failures[0]
            raise RunsFailed(
                f"{len(failures)} of {len(planned)} runs failed ({line}); the others stand in {root}", study
            ) from first
        # Confirm.
        if confirm is not None and best is not None:
            study = _confirm(book, chosen, best, task if isinstance(task, str) else loaded.name, confirm, checksum)
        return study


def _check_batches(task: Task, jobs: Sequence[Job]) -> None:
    """Refuse, before anything is trained, a global batch larger than the training set."""
    num_examples = len(task.load("train")) if jobs else 0  # type: ignore[arg-type]
    for job in jobs:
        try:
            check_batch(num_examples, job.recipe.local_batch, job.recipe.workers)
        except DataError as error:
            raise DataError(f"row {job.name}: {error}") from None


def _confirm(
    book: Book, chosen: Sequence[Condition], best: StudyRow, task: str, launch: Launch, checksum: str | None
) -> Study:
    """Train the best row on as many processes, and add it as a row of its own."""
    folder = book.root / best.runs[0]
    recipe = recorded_recipe(folder)
    assert recipe is not None
    real = folder.with_name(f"{folder.name}-real")
    check_same_recipe(real, recipe)
    if not is_finished(real, recipe):
        sign(real, task, checksum)
        status = launch(task, recipe, real)
        if status in STOPS:
            raise Stopped(STOPS[status])
        if status != 0:
            raise RunsFailed(
                f"{best.name} on {best.workers} real workers ended with status {status}; look at {real}",
                book.write(chosen),
            )
    condition = Condition(f"{best.name} (real)", best.summary, recipe)
    row = summarise(condition, book.root, [(recipe.seed, real)], rehearsed=False)
    if row is not None:
        book.kept[row.name] = row
    return book.write(chosen)
