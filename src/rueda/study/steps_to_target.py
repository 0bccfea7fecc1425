"""Counts the updates and examples to a target at each batch size, with the learning rate tuned for each.

The target is an accuracy, or a value of any other metric, the loss included.

This is the measurement of Shallue et al. 2018 (1811.03600): a batch size is judged by the smallest number of updates
that it needs, and the learning rate that is best for one batch size is not the best for another. At each batch size the
search begins with the best rate of the previous batch size, scaled by the square root of the ratio of the batch sizes.
It then follows a geometric grid (factors of 2, finally of the square root of 2) as long as fewer updates are needed. A
trial that needs more updates than the best one so far is stopped. The metric is evaluated, on validation data where the
task has some, each time the number of updates has grown by 10 %, and the crossing of the target is interpolated.

The rate is tuned on one seed, and the updates are counted on others: the best of several trials is better than it would
be again (the winner's curse). Some of these seeds may not reach the target. The mean over the seeds that reach it would
be too low, so such a batch size is marked and left out of the fitted curve. Only the rate is tuned; momentum and all
else are those of the recipe.

A schedule that lets the rate decay is laid over all epochs of the limit, not over those of the task's recipe, after
which the rate would be 0 and no target would be reached any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rueda.data.length import count_examples
from rueda.errors import NonFiniteError, RecipeError, RunError, TaskError
from rueda.files.start_directory import located
from rueda.optim.batch_growth import stretch
from rueda.records import Recipe
from rueda.records.environment import environment
from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.records.recipe.batches import check_batches, check_counts
from rueda.records.recipe.recipe import NO_TARGET
from rueda.records.recipe.values import refuse_settings
from rueda.records.steps_to_target import BatchPoint, StepsToTarget
from rueda.records.study import mean_and_spread
from rueda.study.critical_batch import fit_points
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.train.evaluate import Evaluator
from rueda.train.regime import batch_at
from rueda.train.training import Training
from rueda.world import open_world

_GROWTH = 1.1
_FACTOR = 2.0
_MOST_RATES = 7


def tune(start: float, trial: Callable[[float, float], float | None], limit: float) -> dict[float, float | None]:
    """Search the grid of rates: upwards from ``start`` while fewer updates are needed, then downwards, then refined.

    While no rate has reached the target (``start`` may be far too high), the search continues downwards.

    Args:
        start: the first rate.
        trial: a function of a rate and a limit that returns the updates needed, or None.
        limit: the number of updates after which the first trial is stopped.

    Returns:
        the updates that each rate needed, or None where the trial was stopped.

    >>> tune(0.1, lambda rate, limit: abs(math.log2(rate / 0.4)) * 10 + 100, limit=1e9)
    {0.1: 120.0, 0.2: 110.0, 0.4: 100.0, 0.8: 110.0, 0.5656...: 105.0..., 0.2828...: 105.0...}
    """
    found: dict[float, float | None] = {}
    best_rate, best = None, limit

    def better(rate: float) -> bool:
        nonlocal best_rate, best
        found[rate] = steps = trial(rate, best)
        if steps is None or steps >= best:
            return False
        best_rate, best = rate, steps
        return True

    better(start)
    rate = start * _FACTOR
    while len(found) < _MOST_RATES and better(rate):
        rate *= _FACTOR
    if best_rate in (start, None):  # no higher rate was better
        rate = start / _FACTOR
        while len(found) < _MOST_RATES and (better(rate) or best_rate is None):
            rate /= _FACTOR
    if best_rate is not None:
        middle = best_rate
        for factor in (math.sqrt(_FACTOR), 1 / math.sqrt(_FACTOR)):
            better(middle * factor)
    return found


class Reached(NamedTuple):
    """When a training reached the target, interpolated between two evaluations."""

    updates: float
    examples: float


def updates_to_target(
    task: Task, recipe: Recipe, target: float, limit: float, metric: MetricInfo = ACCURACY
) -> Reached | None:
    """Train until the metric reaches the target; None if that takes more updates than the limit, or diverges.

    The metric is evaluated on validation data, where the task has some, and otherwise on test data.

    Args:
        task: the task, with its data loaded.
        recipe: how to train.
        target: the value to reach.
        limit: the largest number of updates.
        metric: what the target is a value of.
    """
    training = Training(task, recipe, open_world())
    evaluator, state, evaluate_at = Evaluator(training, deciding_only=True), training.state, 1
    worst = 0.0 if metric.higher_is_better else 1.0  # where a fraction is taken to begin
    before, value_before = Reached(0.0, 0.0), worst if metric.percent else None
    while state.step < limit:
        try:
            training.step()
        except NonFiniteError:
            return None
        if state.step < evaluate_at:
            continue
        evaluate_at = math.ceil(state.step * _GROWTH)
        evaluation = evaluator.run().deciding
        value = evaluation.values.get(metric.name)
        if not math.isfinite(evaluation.loss) or value is None or not math.isfinite(value):
            return None
        if metric.reaches(value, target):
            span = abs(value - value_before) if value_before is not None else 0.0
            beyond = abs(value - target) / max(span, 1e-12) if value_before is not None else 0.0
            return Reached(
                state.step - (state.step - before.updates) * beyond,
                state.examples - (state.examples - before.examples) * beyond,
            )
        before, value_before = Reached(state.step, state.examples), value
    return None


def study_steps_to_target(
    task: Task | str,
    *,
    target_accuracy: float | None = None,
    target: float | None = None,
    target_metric: str | None = None,
    batches: Sequence[int] | None = None,
    seeds: int = 1,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    folder: Path | str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> StepsToTarget:
    """Count the updates to a target at each batch size, as ``rueda steps-to-target`` does.

    Args:
        task: a built-in name, a task file, or a :class:`Task`.
        target_accuracy: the accuracy to reach, as a fraction.
        target: instead, the value of the task's primary metric to reach, or of ``target_metric``.
        target_metric: the name of the metric that ``target`` is about, ``loss`` included.
        batches: batch sizes; by default 16, 32, 64 ... up to a quarter of the training set.
        seeds: trainings at the best rate of each batch size, on seeds other than the one that it was tuned on.
        epochs: number of epochs after which a trial is stopped; by default 8 times that of the task's recipe.
        settings: fields of the recipe, as ``name=value``.
        folder: where ``steps.json`` is written after each batch size, and read to resume; None writes nothing.
        say: called with a line after each trial, each further seed and each batch size.
    """
    _check_target(target_accuracy, target, target_metric)
    check_counts(seeds=seeds)
    start = Path.cwd()  # before the task file runs, which may call os.chdir
    loaded = load_task_and_data(task)
    metric, value = _target(loaded, target_accuracy, target, target_metric)
    refuse_settings(
        settings,
        {"workers": "every trial has one worker", "target_accuracy": "give --target-accuracy",
         "target": "give --target"},
    )  # fmt: skip
    base = loaded.recipe.with_settings(settings).change(workers=1, **NO_TARGET)
    num_examples = count_examples(loaded.for_recipe(base).load("train"))
    epochs = 8 * base.epochs if epochs is None else epochs
    check_counts(epochs=epochs)
    if base.rate_note:
        say(base.rate_note)
    if batches is None:
        batches = [2**power for power in range(4, max(5, (num_examples // 4).bit_length()))]
    check_batches(batches, num_examples)
    file = None if folder is None else located(Path(folder), start) / StepsToTarget.FILE
    result = StepsToTarget(
        task=loaded.name, target_accuracy=value if metric.name == ACCURACY.name else None, metric=metric,
        target=None if metric.name == ACCURACY.name else value, recipe=base.to_toml(), epochs=epochs,
        evaluated_on="test" if loaded.for_recipe(base).validation is None else "validation",
        task_file=None if loaded.file is None else loaded.file.sha256, points=(), environment=environment(),
    )  # fmt: skip
    points = {} if file is None else _read(file, result)
    for batch in batches:  # refuse all sizes that batch growth does not allow before the first is measured
        try:
            batch_at(base.change(batch=batch, base_batch=batch, accumulate=1), 0, num_examples)
        except RecipeError as error:
            raise RecipeError(f"batch {batch:,}: {error}") from None
    rate_before: tuple[int, float] | None = None
    for batch in sorted(set(batches)):
        if batch not in points or points[batch].num_seeds < seeds:
            at, rate = rate_before or (base.global_batch, base.rate)
            rate *= math.sqrt(batch / at)
            recipe = _laid_over(base, epochs).change(batch=batch, base_batch=batch, accumulate=1, rate=rate)
            points[batch] = _measure(loaded, recipe, metric, value, seeds, epochs * num_examples / batch, say)
            say(_line(points[batch]))
        best = points[batch].rate
        rate_before = rate_before if best is None else (batch, best)
        ordered = tuple(points[size] for size in sorted(points))
        result = replace(result, points=ordered, fit=fit_points(ordered))
        if file is not None:
            result.save(file)
    return result


def _laid_over(recipe: Recipe, epochs: int) -> Recipe:
    """Lay a decaying schedule and its milestones over a number of epochs; a constant rate needs no change."""
    if recipe.schedule == "constant":
        return recipe
    _, milestones = stretch(recipe.epochs, recipe.milestones, epochs / recipe.epochs)
    return recipe.change(epochs=epochs, milestones=milestones)


def _check_target(accuracy: float | None, target: float | None, metric: str | None) -> None:
    if accuracy is not None and not 0 < accuracy <= 1:
        raise RecipeError("--target-accuracy", expected="a fraction", got=accuracy, do="give e.g. 0.85")
    if accuracy is not None and (target is not None or metric is not None):
        raise RecipeError("--target-accuracy and --target both say what to reach; leave one of them out")
    if accuracy is None and target is None:
        raise RecipeError("--target", expected="the value to reach", got=None, do="give it, or --target-accuracy")
    if target is not None and not math.isfinite(target):
        raise RecipeError("--target", expected="a number", got=target, do="give the value to reach")


def _target(
    task: Task, accuracy: float | None, target: float | None, name: str | None
) -> tuple[MetricInfo, float]:  # fmt: skip
    """Return the metric and the value to reach."""
    known = {one.name: one.info for one in task.all_metrics}
    if accuracy is not None:
        if not known:
            raise TaskError(
                f"steps to a target accuracy need an accuracy, which task {task.name} does not have; add a metric, or "
                "give --target with a loss"
            )
        primary = task.all_metrics[0]
        return (primary.resolved(counts=True) if primary.percent is None else primary.info), accuracy
    if name is not None and name not in (LOSS.name, *known):
        expected = ", ".join([*known, LOSS.name])
        raise TaskError(f"--target-metric of task {task.name}", expected=expected, got=name, do="choose one")
    assert target is not None
    return (next(iter(known.values()), LOSS) if name is None else known.get(name, LOSS)), target


def _measure(
    task: Task,
    recipe: Recipe,
    metric: MetricInfo,
    target: float,
    seeds: int,
    limit: float,
    say: Callable[[str], None],
) -> BatchPoint:
    reached: dict[float, Reached] = {}

    def trial(rate: float, most: float) -> float | None:
        found = updates_to_target(task, recipe.change(rate=rate), target, most, metric)
        missed = "not better than the best so far" if reached else "not reached"
        ended = missed if found is None else f"{found.updates:,.0f} updates"
        say(f"batch {recipe.batch:,}, rate {rate:.4g}: {ended}")
        if found is None:
            return None
        reached[rate] = found
        return found.updates

    tried = tune(recipe.rate, trial, limit)
    rate = min(reached, key=lambda one: reached[one].updates, default=None)
    found: list[Reached] = []
    for seed in range(recipe.seed + 1, recipe.seed + 1 + (seeds if rate is not None else 0)):
        one = updates_to_target(task, recipe.change(rate=rate, seed=seed), target, limit, metric)
        ended = (
            f"not reached: diverged, or {limit:,.0f} updates passed" if one is None else f"{one.updates:,.0f} updates"
        )
        say(f"batch {recipe.batch:,}, rate {rate:.4g}, seed {seed}: {ended}")
        if one is not None:
            found.append(one)
    return BatchPoint(
        batch=recipe.batch, rate=rate, num_seeds=seeds, tried=tuple(sorted(tried.items())),
        updates=mean_and_spread([one.updates for one in found])[0], seeds=tuple(one.updates for one in found),
        examples=mean_and_spread([one.examples for one in found])[0],
    )  # fmt: skip


def _line(point: BatchPoint) -> str:
    if point.rate is not None and not point.seeds:
        return (
            f"batch {point.batch:,}: none of {point.num_seeds} fresh seeds reached the target at rate {point.rate:.4g}"
        )
    if point.updates is None or point.examples is None:
        return f"batch {point.batch:,}: the target was not reached at any of {len(point.tried)} rates"
    some = "" if point.complete else f" ({len(point.seeds)} of {point.num_seeds} seeds reached the target)"
    updates, examples = f"{point.updates:,.0f} updates", f"{point.examples:,.0f} examples"
    return f"batch {point.batch:,}: {updates}, {examples} at rate {point.rate:.4g}{some}"


def _read(file: Path, now: StepsToTarget) -> dict[int, BatchPoint]:
    """Return the batch sizes that an interrupted study has measured; refuse a study of something else."""
    if not file.exists():
        return {}
    again = f"remove {file} to begin anew"
    old = StepsToTarget.load(file, again=again)
    try:
        recipe = Recipe.from_toml(old.recipe)  # an older Rueda wrote fewer fields
    except RecipeError as error:
        raise RunError(f"{file}: expected a recipe, got: {error}; {again}") from None
    differs = {
        "task": old.task != now.task,
        "target accuracy": (old.metric.name, old.value) != (now.metric.name, now.value),
        "recipe": recipe != Recipe.from_toml(now.recipe),
        "epochs": old.epochs != now.epochs,
        "task file": None not in (old.task_file, now.task_file) and old.task_file != now.task_file,
    }
    for name in filter(differs.get, differs):
        raise RunError(f"{file} was made with another {name}; choose another --folder")
    return {point.batch: point for point in old.points}
