"""The learning curve: test error against the number of training examples, from trainings on growing subsets.

Hestness et al. 2017 (1712.00409) train one model on subsets of geometric sizes. Here each size m and seed draws its own
subset, with the classes in the proportions of the whole set; so no two points share their luck.

**How long each is trained.** A subset of m of M examples cannot be trained by the epoch of the whole set (too few
updates), nor needs it as many updates. Its epoch has

    M^(1 - growth) m^growth    examples,    growth = 1/2:    sqrt(M m)

its m examples over and over. Epochs, schedule, milestones and warm-up stay those of the recipe, and the whole set is
trained by the recipe itself: growth 1 keeps the passes, growth 0 the updates. The error is that after the last epoch,
never the best of several, which would be picked by the luck of the test data.

Phases: **plan** the runs, **run** what is not finished (:mod:`rueda.jobs`), **summarise** after every run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rueda import jobs as starter
from rueda.errors import RecipeError, RunError
from rueda.files.atomic import write_atomically
from rueda.files.lock import held
from rueda.jobs import Job
from rueda.records import Recipe
from rueda.records.forecast import CurvePoint, Forecast
from rueda.records.recipe.batches import check_counts
from rueda.study.planned_run import PlannedRun, make_runs
from rueda.study.progress import StudyProgress
from rueda.study.runs import check_same_recipe, is_finished, last_row
from rueda.tasks.naming import folder_name
from rueda.train.request import TrainAnswer, TrainRequest

if TYPE_CHECKING:
    from rueda.tasks import Task

SMALLEST = 64
"""examples of the smallest size that is chosen by default"""


@dataclass(frozen=True, kw_only=True)
class CurveRequest:
    """What a learning curve is asked to measure."""

    task: str
    epochs: int | None
    growth: float
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SubsetRequest:
    """A training on a part of the task's training set."""

    training: TrainRequest
    examples: int
    growth: float


@dataclass(frozen=True)
class SubsetRun(PlannedRun):
    """A run to make, on a part of a task's training set."""

    task: str
    examples: int
    growth: float

    def job(self, task: str) -> Job[TrainAnswer]:
        """Make its job."""
        request = SubsetRequest(training=self.request(task), examples=self.examples, growth=self.growth)
        return Job(function="rueda.study.subset:train_subset", request=request, answer=TrainAnswer)

    def part_of(self, task: Task) -> Task:
        """Give the task with its part of the training set."""
        from rueda.study.subset import subset_of

        return subset_of(task, self.examples, self.seed, self.growth)


def geometric_sizes(largest: int, *, ratio: float = 2.0, count: int = 6, smallest: int = SMALLEST) -> list[int]:
    """List sizes that fall from the largest by a ratio, smallest first.

    >>> geometric_sizes(3_000)
    [94, 188, 375, 750, 1500, 3000]
    """
    sizes = [round(largest / ratio**power) for power in range(count)]
    return sorted({size for size in sizes if size >= min(smallest, largest)})


def measure_learning_curve(
    task: Task | str,
    *,
    sizes: Sequence[int] | None = None,
    largest_fraction: float = 0.25,
    seeds: int = 3,
    epochs: int | None = None,
    growth: float = 0.5,
    check: bool = False,
    settings: Sequence[str] = (),
    folder: Path | str | None = None,
    jobs: int = 2,
    progress: bool = True,
) -> Forecast:
    """Train on growing subsets; half of ``rueda forecast`` (:mod:`rueda.plan.power_law` is the other).

    What is finished in the folder is not run again, what was interrupted goes on; ``forecast.json`` there is written
    after every run.

    Args:
        task: the name of a built-in task or the path of a file that defines one. A :class:`Task` itself is trained in
            this process, run after run.
        sizes: of the subsets; by default six that double up to ``largest_fraction`` of the training set.
        largest_fraction: of the training set, where sizes are not given.
        seeds: trainings of each size, each with its own subset and start.
        epochs: of the recipe; by default the task's own.
        growth: how the length of an epoch grows with the size (see above).
        check: train on the whole set, too; that point is kept apart from the others.
        settings: fields of the recipe, as ``name=value``.
        folder: where to write; by default ``runs/forecast-TASK``.
        jobs: runs at a time.
        progress: show a bar or lines.

    Raises:
        RunError: the folder holds something else, or a run failed; the others are finished first.
    """
    # Plan.
    check_counts(seeds=seeds, jobs=jobs)
    if not 0 <= growth <= 1:
        raise RecipeError("growth", expected="from 0 (the same updates) to 1", got=growth, do="correct it")
    name = task if isinstance(task, str) else task.name
    request = CurveRequest(task=name, epochs=epochs, growth=growth, settings=tuple(settings))
    if isinstance(task, str):
        job = Job(function="rueda.study.subset:plan", request=request, answer=Forecast)
        about = starter.run(job, show=progress)
    else:
        from rueda.study.subset import plan_task
        from rueda.tasks.loading import load_task_and_data

        task = load_task_and_data(task)
        about = plan_task(task, request)
    recipe = Recipe.from_toml(about.recipe)
    chosen = _sizes(sizes, largest_fraction, about.examples, check)
    root = Path(folder) if folder is not None else Path("runs", f"forecast-{folder_name(about.task)}")
    largest_first = sorted(chosen, reverse=True)  # a want of memory or time shows at once
    every_seed = range(recipe.seed, recipe.seed + seeds)
    planned = [_run(root, about, recipe.change(seed=seed), size) for size in largest_first for seed in every_seed]

    def summarise() -> Forecast:
        found = _summarise(about, planned, check)
        found.save(root / "forecast.json")
        return found

    with held(root):
        for run in planned:
            _claim(run)
        todo = [run for run in planned if not is_finished(run.folder, run.recipe)]
        # Run.
        with StudyProgress(speak=progress, total=len(planned), done=len(planned) - len(todo)) as show:
            failures = make_runs(task, todo, jobs, show, finished=summarise)
        # Summarise.
        if failures:
            raise RunError(
                f"{len(failures)} of {len(planned)} runs failed ({failures[0][0]}); the others stand in {root}"
            )
        return summarise()


def _sizes(sizes: Sequence[int] | None, largest_fraction: float, whole: int, check: bool) -> list[int]:
    if not 0 < largest_fraction <= 1:
        raise RecipeError(
            "--largest-fraction", expected="above 0 and up to 1", got=largest_fraction, do="give e.g. 0.25"
        )
    chosen = geometric_sizes(int(largest_fraction * whole)) if sizes is None else sorted(set(sizes))
    for size in chosen:
        if not 1 <= size <= whole:
            raise RecipeError("size", expected=f"from 1 to {whole:,}, the training set", got=size, do="correct --sizes")
    if not chosen:
        raise RecipeError("sizes", expected="one or more", got=[], do="raise --largest-fraction")
    if check and whole in chosen:
        raise RecipeError(f"--check keeps the whole set ({whole:,}) apart, but the sizes hold it; leave one out")
    return [*chosen, whole] if check else chosen


def _run(root: Path, about: Forecast, recipe: Recipe, size: int) -> SubsetRun:
    folder = root / "runs" / f"m{size}-seed{recipe.seed}"
    return SubsetRun(f"{size:,} examples", recipe.seed, recipe, folder, about.task, size, about.growth)


def _claim(run: SubsetRun) -> None:
    """Write which subset a run has; refuse to mix two in one folder."""
    check_same_recipe(run.folder, run.recipe)
    file = run.folder / "subset.json"
    wanted = {"task": run.task, "examples": run.examples, "seed": run.seed, "growth": run.growth}
    try:
        old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else wanted
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: expected the subset of a run, got: {error}; remove {run.folder}") from None
    if old != wanted:
        raise RunError(f"{run.folder} was trained on {old}, now asked: {wanted}; choose another --folder")
    write_atomically(file, json.dumps(wanted).encode())


def _summarise(about: Forecast, planned: Sequence[SubsetRun], check: bool) -> Forecast:
    sizes = sorted({run.examples for run in planned})
    points = [point for size in sizes if (point := _point([run for run in planned if run.examples == size]))]
    whole = next((point for point in points if check and point.examples == about.examples), None)
    return replace(about, points=tuple(point for point in points if point is not whole), whole=whole)


def _point(runs: Sequence[SubsetRun]) -> CurvePoint | None:
    """Come from the finished runs of a size to its point; None if there is none yet."""
    rows = [(run.seed, row) for run in runs if is_finished(run.folder, run.recipe) and (row := last_row(run.folder))]
    if not rows:
        return None
    whole = [(seed, row) for seed, row in rows if not row.diverged]
    _, last = (whole or rows)[0]
    speeds = [row.mean_images_per_second for _, row in rows]
    return CurvePoint(
        examples=runs[0].examples, passes=last.examples / runs[0].examples, updates=last.step,
        errors=tuple(1 - row.test_accuracy for _, row in whole if row.test_accuracy is not None),
        seeds=tuple(seed for seed, _ in whole),
        diverged=len(rows) - len(whole), images_per_second=sum(speeds) / len(speeds),
    )  # fmt: skip
