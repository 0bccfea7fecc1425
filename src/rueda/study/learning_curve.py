"""The learning curve: test error against the number of training examples, from trainings on growing subsets.

Hestness et al. 2017 (1712.00409) train one model on subsets of geometric sizes. Here every size m and seed draws its
own subset, with the class proportions of the whole set, so that the points of the curve are independent.

**How long each size is trained.** If a subset of m of M examples were trained for the same number of passes, it would
get too few updates; it does not need as many updates as the whole set either. An epoch of the subset has

    M^(1 - growth) m^growth    examples,    growth = 1/2:    sqrt(M m)

that is, its m examples are repeated. Epochs, schedule, milestones and warm-up are those of the recipe, and the whole
set is trained by the recipe itself. With growth 1 all sizes have the same number of passes, with growth 0 the same
number of updates. The error is the one after the last epoch, not the lowest of all epochs, which would be selected on
test data.

Phases: **plan** the runs, **run** those that are not finished (:mod:`rueda.jobs`), **summarise** after every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rueda import jobs as starter
from rueda.errors import RecipeError, RunError, TaskError
from rueda.files.lock import held
from rueda.jobs import Job
from rueda.records import Recipe, Row
from rueda.records.forecast import FEWEST_SIZES, CurvePoint, Forecast
from rueda.records.metric import LOSS, MetricInfo
from rueda.records.recipe.batches import check_counts
from rueda.records.subset import TrainedSubset
from rueda.study.planned_run import PlannedRun, execute
from rueda.study.runs import check_same_recipe, is_finished, last_row
from rueda.tasks.half_precision import protect_before_loading
from rueda.tasks.naming import folder_name
from rueda.terminal.numbers import things
from rueda.train.request import TrainAnswer, TrainRequest

if TYPE_CHECKING:
    from rueda.tasks import Task

_SMALLEST = 64
"""number of examples in the smallest default subset"""


@dataclass(frozen=True, kw_only=True)
class CurveRequest:
    """A request for the plan of a learning curve."""

    task: str
    metric: str | None = None
    epochs: int | None
    growth: float
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SubsetRequest:
    """A request for a training on a subset of the task's training set."""

    training: TrainRequest
    examples: int
    growth: float


@dataclass(frozen=True)
class SubsetRun(PlannedRun):
    """A training on a subset of the task's training set."""

    task: str
    examples: int
    growth: float

    def job(self, task: str) -> Job[TrainAnswer]:
        """Return the job that draws the subset and trains it in another process."""
        request = SubsetRequest(training=self.request(task), examples=self.examples, growth=self.growth)
        return Job(function="rueda.study.subset:train_subset", request=request, answer=TrainAnswer)

    def trained_task(self, task: Task) -> Task:
        """Return the task with a subset of its training set."""
        from rueda.study.subset import subset_of

        return subset_of(task, self.examples, self.seed, self.growth)


def geometric_sizes(largest: int) -> list[int]:
    """Return up to six sizes that double and end at the largest, in increasing order.

    >>> geometric_sizes(3_000)
    [94, 188, 375, 750, 1500, 3000]
    """
    sizes = [round(largest / 2**power) for power in range(6)]
    return sorted({size for size in sizes if size >= min(_SMALLEST, largest)})


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
    metric: str | None = None,
    target: float | None = None,
) -> Forecast:
    """Train on subsets of increasing size; this is the first step of ``rueda forecast``.

    Finished runs in the folder are not repeated, interrupted ones are resumed; ``forecast.json`` is written after every
    run.

    Args:
        task: a built-in name, a task file, or a :class:`Task`, which is trained in this process, one run at a time.
        sizes: sizes of the subsets; by default six that double up to ``largest_fraction`` of the training set.
        largest_fraction: the largest default size, as a fraction of the training set.
        seeds: trainings of each size, each with its own subset and initial weights.
        epochs: number of epochs; by default that of the task's recipe.
        growth: how the length of an epoch grows with the size, from 0 to 1 (see the description of the module).
        check: also train on the whole set; that point is kept apart from the others.
        settings: fields of the recipe, as ``name=value``.
        folder: where to write; by default ``runs/forecast-TASK``.
        jobs: trainings that run at the same time.
        progress: show a bar or lines.
        metric: the metric whose error is measured, ``loss`` included; by default the task's primary one.
        target: the error that will be forecast, to refuse a wrong one before anything is trained.

    Raises:
        RunError: the folder holds something else, or a run failed; the others are completed first.
    """
    # Plan.
    check_counts(seeds=seeds, jobs=jobs)
    if not 0 <= growth <= 1:
        raise RecipeError("growth", expected="from 0 (the same updates) to 1", got=growth, do="correct it")
    name = task if isinstance(task, str) else task.name
    request = CurveRequest(task=name, epochs=epochs, growth=growth, settings=tuple(settings), metric=metric)
    if isinstance(task, str):
        job = Job(function="rueda.study.subset:plan", request=request, answer=Forecast)
        protect_before_loading(task)  # before all jobs, so that one line reports it
        about = starter.run(job, show=progress)
    else:
        from rueda.study.subset import plan_task
        from rueda.tasks.loading import load_task_and_data

        task = load_task_and_data(task)
        about = plan_task(task, request)
    if target is not None and about.is_fraction and not 0 < target < 1:
        raise RecipeError("--target-error", expected="a fraction between 0 and 1", got=target, do="give e.g. 0.05")
    recipe = Recipe.from_toml(about.recipe)
    chosen = _sizes(sizes, largest_fraction, about.examples, check)
    root = Path(folder) if folder is not None else Path("runs", f"forecast-{folder_name(about.task)}")
    largest_first = sorted(chosen, reverse=True)  # so that a lack of memory shows at once
    planned = [
        SubsetRun(
            f"{size:,} examples", seed, recipe.change(seed=seed), root / "runs" / f"m{size}-seed{seed}", about.task,
            size, growth,
        )
        for size in largest_first
        for seed in range(recipe.seed, recipe.seed + seeds)
    ]  # fmt: skip

    def summarise() -> Forecast:
        found = _summarise(about, planned, check)
        found.save(root / "forecast.json")
        return found

    with held(root):
        for run in planned:
            _record_subset(run)
        # Run.
        failed = execute(task, planned, jobs, progress=progress, finished=summarise, notes=[recipe.rate_note])
        if failed is not None:
            raise failed
        # Summarise.
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
    if sizes is None and len(chosen) < FEWEST_SIZES:
        largest = _SMALLEST * 2 ** (FEWEST_SIZES - 1)
        fraction = f"--largest-fraction {math.ceil(100 * largest / whole) / 100:g} or " if largest <= whole else ""
        raise RecipeError(
            f"--largest-fraction {largest_fraction:g} of {whole:,} training examples gives "
            f"{things(len(chosen), 'size')} of {_SMALLEST} examples or more, but a forecast needs {FEWEST_SIZES}; "
            f"give {fraction}--sizes"
        )
    if check and whole in chosen:
        raise RecipeError(
            f"--check compares with a training on the whole set ({whole:,}), which must not be one of the sizes; "
            "leave one of them out"
        )
    return [*chosen, whole] if check else chosen


def _record_subset(run: SubsetRun) -> None:
    """Record which subset a run is trained on; refuse a folder that records another one."""
    check_same_recipe(run.folder, run.recipe)
    file = run.folder / TrainedSubset.FILE
    wanted = TrainedSubset(task=run.task, examples=run.examples, seed=run.seed, growth=run.growth)
    old = TrainedSubset.load(file, again=f"remove {run.folder}") if file.exists() else wanted
    if old.words != wanted.words:
        raise RunError(
            f"{run.folder} was trained on {old.words}, but now the request is {wanted.words}; choose another --folder"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    wanted.save(file)


def _summarise(about: Forecast, planned: Sequence[SubsetRun], check: bool) -> Forecast:
    sizes, metric = sorted({run.examples for run in planned}), _metric(about, planned)
    points = [point for size in sizes if (point := _point([run for run in planned if run.examples == size], metric))]
    whole = next((point for point in points if check and point.examples == about.examples), None)
    return replace(about, metric=metric, points=tuple(point for point in points if point is not whole), whole=whole)


def _metric(about: Forecast, planned: Sequence[SubsetRun]) -> MetricInfo:
    """Return the metric of the forecast; whether that of a user's function is a fraction is known from its values.

    Raises:
        TaskError: higher values are better, but the metric is not a fraction, so no error can be computed from it.
    """
    metric = about.metric
    if (row := next((row for run in planned if (row := last_row(run.folder)) is not None), None)) is not None:
        known = {one.name: one for one in (LOSS, *row.metrics)}
        metric = known.get(metric.name, row.metric)
    if metric.higher_is_better and not metric.percent:
        raise TaskError(
            f"a forecast needs an error that falls with more data, but the {metric.name} of task {about.task} is "
            "better the higher it is, and is no fraction; choose another metric with --target-metric, such as loss"
        )
    return metric


def _error(row: Row, metric: MetricInfo) -> float | None:
    """Return the error: 1 - the metric if higher values are better, otherwise the metric itself."""
    value = row.value("test", metric.name)
    return None if value is None else 1 - value if metric.higher_is_better else value


def _point(runs: Sequence[SubsetRun], metric: MetricInfo) -> CurvePoint | None:
    """Summarise the finished runs of one size as a point of the curve; None if no run has finished yet."""
    rows = [(run.seed, row) for run in runs if is_finished(run.folder, run.recipe) and (row := last_row(run.folder))]
    if not rows:
        return None
    trained = [(seed, row) for seed, row in rows if not row.diverged]
    _, last = (trained or rows)[0]
    speeds = [row.examples / max(row.seconds, 1e-9) for _, row in rows]  # sizes count examples, whatever the unit
    return CurvePoint(
        examples=runs[0].examples, passes=last.examples / runs[0].examples, updates=last.step,
        errors=tuple(error for _, row in trained if (error := _error(row, metric)) is not None),
        seeds=tuple(seed for seed, _ in trained),
        diverged=len(rows) - len(trained), images_per_second=sum(speeds) / len(speeds),
    )  # fmt: skip
