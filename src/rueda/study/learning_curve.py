"""The learning curve: test error against the number of training examples, from trainings on growing subsets.

Hestness et al. 2017 (1712.00409) train one model on subsets of geometric sizes. Here each size m and seed draws its own
subset, with the classes in the proportions of the whole set; so no two points share their luck.

**How long each is trained.** A subset of m of M examples cannot be trained by the epoch of the whole set (too few
updates), nor needs it as many updates. Its epoch has

    M^(1 - growth) m^growth    examples,    growth = 1/2:    sqrt(M m)

its m examples over and over. Epochs, schedule, milestones and warm-up stay those of the recipe, and the whole set is
trained by the recipe itself: growth 1 keeps the passes, growth 0 the updates. The error is that after the last epoch,
never the best of several, which would be picked by the luck of the test data.

Phases: **plan** the runs, **run** what is not finished (:mod:`rueda.study.pool`), **summarise** after every run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from rueda.data import Arrays
from rueda.errors import RecipeError, RunError, TaskError, explain
from rueda.files.atomic import write_atomically
from rueda.files.lock import held
from rueda.records import Recipe
from rueda.records.environment import environment
from rueda.records.forecast import CurvePoint, Forecast
from rueda.study.pool import Job, run_here, run_in_processes
from rueda.study.progress import StudyProgress, reason_of, run_line
from rueda.study.runs import check_same_recipe, is_finished, last_row
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.tasks.naming import folder_name
from rueda.world.seeds import derive

SMALLEST = 64
"""examples of the smallest size that is chosen by default"""

_TASK_FILE = '''"""Written by `rueda forecast`: the task on the examples that the run's subset.json names."""
import sys

from rueda.study.learning_curve import subset_task

task = subset_task({task!r}, sys.argv[2])
'''


@dataclass(frozen=True)
class SubsetJob(Job):
    """A run to make, on a part of a task's training set."""

    task: str
    examples: int
    growth: float


def geometric_sizes(largest: int, *, ratio: float = 2.0, count: int = 6, smallest: int = SMALLEST) -> list[int]:
    """List sizes that fall from the largest by a ratio, smallest first.

    >>> geometric_sizes(3_000)
    [94, 188, 375, 750, 1500, 3000]
    """
    sizes = [round(largest / ratio**power) for power in range(count)]
    return sorted({size for size in sizes if size >= min(smallest, largest)})


def balanced_subset(labels: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Draw indices of ``size`` examples at random, every class within one example of its share.

    >>> labels = np.array([0] * 60 + [1] * 30 + [2] * 10)
    >>> np.bincount(labels[balanced_subset(labels, 20, seed=0)]).tolist()
    [12, 6, 2]
    """
    draw = np.random.default_rng(derive("subset", seed, size))
    order = draw.permutation(len(labels))
    place = np.empty(len(labels))
    # Spread each class evenly over [0, 1): then the first m of all have each class's share.
    for label in np.unique(labels):
        members = order[labels[order] == label]
        place[members] = (np.arange(len(members)) + draw.random()) / len(members)
    return np.argsort(place, kind="stable")[:size].astype(np.int64)


def subset_of(task: Task, size: int, seed: int, growth: float) -> Task:
    """Give the task with a subset of its training data, repeated to the length of its epoch.

    Args:
        task: with its training data.
        size: different examples; that of the whole set changes nothing.
        seed: of the draw.
        growth: how an epoch grows with the size, from 0 to 1.
    """
    data: Any = task.load("train")
    whole = len(data)
    if size == whole:
        return replace(task, train=data)
    labels = data.targets.numpy() if isinstance(data, Arrays) else np.zeros(whole, dtype=np.int64)
    if labels.dtype != np.int64 or labels.ndim != 1:
        labels = np.zeros(whole, dtype=np.int64)  # no classes: any examples do
    chosen = balanced_subset(labels, size, seed)
    length = round(whole ** (1 - growth) * size**growth)
    repeated = np.resize(chosen, length)  # over and over; the last round may be a part, equal in classes, too
    part = data.subset(repeated) if isinstance(data, Arrays) else Subset(data, repeated.tolist())
    return replace(task, train=part)


def subset_task(task: str, folder: Path | str) -> Task:
    """Give the task of a run of a learning curve, in the process that trains it."""
    about = json.loads((Path(folder) / "subset.json").read_text(encoding="utf-8"))
    return subset_of(load_task_and_data(task), about["examples"], about["seed"], about["growth"])


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
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if value < 1:
            raise RecipeError(explain(name, expected="1 or more", got=value, do="correct it"))
    if not 0 <= growth <= 1:
        raise RecipeError(explain("growth", expected="from 0 (the same updates) to 1", got=growth, do="correct it"))
    loaded = load_task_and_data(task)
    if loaded.metric is None:
        raise TaskError(f"a forecast is about the share of wrong answers; task {loaded.name} has no metric; add one")
    recipe = loaded.recipe.with_settings(settings).change(workers=1, target_accuracy=None)
    recipe = recipe if epochs is None else recipe.change(epochs=epochs)
    about = _about(loaded, recipe, growth)
    chosen = _sizes(sizes, largest_fraction, about.examples, check)
    root = Path(folder) if folder is not None else Path("runs", f"forecast-{folder_name(loaded.name)}")
    largest_first = sorted(chosen, reverse=True)  # a want of memory or time shows at once
    every_seed = range(recipe.seed, recipe.seed + seeds)
    planned = [_job(root, about, recipe.change(seed=seed), size) for size in largest_first for seed in every_seed]
    with held(root):
        for job in planned:
            _claim(job)
        todo = [job for job in planned if not is_finished(job.folder, job.recipe)]
        # Run.
        failures: list[str] = []
        with StudyProgress(speak=progress, total=len(planned), done=len(planned) - len(todo)) as show:

            def finished(job: Job) -> None:
                _summarise(about, planned, check).save(root / "forecast.json")
                show.finished(job, run_line(job))

            def failed(job: Job, error: Exception) -> None:
                failures.append(f"{job.name}, seed {job.seed}: {reason_of(error)}")
                show.finished(job, failures[-1])

            if isinstance(task, str):
                file = root / "task.py"
                write_atomically(file, _TASK_FILE.format(task=task).encode())
                run_in_processes(
                    str(file), todo, jobs, started=show.started, finished=finished, failed=failed, waiting=show.waiting
                )  # fmt: skip
            else:
                for job in todo:
                    part = subset_of(loaded, job.examples, job.seed, growth)
                    run_here(part, [job], started=show.started, finished=finished, failed=failed)
        # Summarise.
        if failures:
            raise RunError(f"{len(failures)} of {len(planned)} runs failed ({failures[0]}); the others stand in {root}")
        found = _summarise(about, planned, check)
        found.save(root / "forecast.json")
        return found


def _about(task: Task, recipe: Recipe, growth: float) -> Forecast:
    """Say what is measured, before anything is."""
    train, test = task.load("train"), task.load("test")
    return Forecast(
        task=task.name, examples=len(train), test_examples=len(test), chance=_chance(test),  # type: ignore[arg-type]
        batch=recipe.global_batch, epochs=recipe.epochs, growth=growth, recipe=recipe.to_toml(),
        environment=(about := environment()), command=about["command"],
    )  # fmt: skip


def _chance(test: Arrays | Dataset[Any]) -> float:
    """Error of always naming the most frequent class; 1 where the classes are not to be seen."""
    if not isinstance(test, Arrays) or test.targets.dtype != torch.int64 or test.targets.ndim != 1:
        return 1.0
    return 1 - int(torch.bincount(test.targets).max()) / len(test)


def _sizes(sizes: Sequence[int] | None, largest_fraction: float, whole: int, check: bool) -> list[int]:
    if not 0 < largest_fraction <= 1:
        raise RecipeError(explain("--largest-fraction", expected="above 0 and up to 1", got=largest_fraction,
                                  do="give e.g. 0.25"))  # fmt: skip
    chosen = geometric_sizes(int(largest_fraction * whole)) if sizes is None else sorted(set(sizes))
    for size in chosen:
        if not 1 <= size <= whole:
            raise RecipeError(explain("size", expected=f"from 1 to {whole:,}, the training set", got=size,
                                      do="correct --sizes"))  # fmt: skip
    if not chosen:
        raise RecipeError(explain("sizes", expected="one or more", got=[], do="raise --largest-fraction"))
    if check and whole in chosen:
        raise RecipeError(f"--check keeps the whole set ({whole:,}) apart, but the sizes hold it; leave one out")
    return [*chosen, whole] if check else chosen


def _job(root: Path, about: Forecast, recipe: Recipe, size: int) -> SubsetJob:
    folder = root / "runs" / f"m{size}-seed{recipe.seed}"
    return SubsetJob(f"{size:,} examples", recipe.seed, recipe, folder, about.task, size, about.growth)


def _claim(job: SubsetJob) -> None:
    """Write which subset a run has; refuse to mix two in one folder."""
    check_same_recipe(job.folder, job.recipe)
    file = job.folder / "subset.json"
    wanted = {"task": job.task, "examples": job.examples, "seed": job.seed, "growth": job.growth}
    try:
        old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else wanted
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: expected the subset of a run, got: {error}; remove {job.folder}") from None
    if old != wanted:
        raise RunError(f"{job.folder} was trained on {old}, now asked: {wanted}; choose another --folder")
    write_atomically(file, json.dumps(wanted).encode())


def _summarise(about: Forecast, planned: Sequence[SubsetJob], check: bool) -> Forecast:
    sizes = sorted({job.examples for job in planned})
    points = [point for size in sizes if (point := _point([job for job in planned if job.examples == size]))]
    whole = next((point for point in points if check and point.examples == about.examples), None)
    return replace(about, points=tuple(point for point in points if point is not whole), whole=whole)


def _point(jobs: Sequence[SubsetJob]) -> CurvePoint | None:
    """Come from the finished runs of a size to its point; None if there is none yet."""
    rows = [(job.seed, row) for job in jobs if is_finished(job.folder, job.recipe) and (row := last_row(job.folder))]
    if not rows:
        return None
    whole = [(seed, row) for seed, row in rows if not row.diverged]
    _, last = (whole or rows)[0]
    speeds = [row.mean_images_per_second for _, row in rows]
    return CurvePoint(
        examples=jobs[0].examples, passes=last.examples / jobs[0].examples, updates=last.step,
        errors=tuple(1 - row.test_accuracy for _, row in whole if row.test_accuracy is not None),
        seeds=tuple(seed for seed, _ in whole),
        diverged=len(rows) - len(whole), images_per_second=sum(speeds) / len(speeds),
    )  # fmt: skip
