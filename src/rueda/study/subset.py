"""Draws subsets of a task's training set and trains on them: the part of a learning curve that loads the task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from rueda.data import Arrays
from rueda.data.length import count_examples, indexed
from rueda.errors import TaskError
from rueda.records.environment import environment
from rueda.records.forecast import Forecast, epoch_length
from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.records.recipe.recipe import NO_TARGET
from rueda.records.recipe.values import refuse_settings
from rueda.study.learning_curve import CurveRequest, SubsetRequest
from rueda.tasks.loading import load_task_and_data
from rueda.tasks.task import Task
from rueda.train.job import train_task
from rueda.train.request import TrainAnswer
from rueda.world.seeds import derive


def balanced_subset(labels: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Draw the indices of ``size`` random examples, with every class within one example of its share.

    >>> labels = np.array([0] * 60 + [1] * 30 + [2] * 10)
    >>> np.bincount(labels[balanced_subset(labels, 20, seed=0)]).tolist()
    [12, 6, 2]
    """
    draw = np.random.default_rng(derive("subset", seed, size))
    order = draw.permutation(len(labels))
    place = np.empty(len(labels))
    # Spread each class evenly over [0, 1): the first m of all examples then hold the share of each class.
    for label in np.unique(labels):
        members = order[labels[order] == label]
        place[members] = (np.arange(len(members)) + draw.random()) / len(members)
    return np.argsort(place, kind="stable")[:size].astype(np.int64)


def subset_of(task: Task, size: int, seed: int, growth: float) -> Task:
    """Return the task with a subset of its training set, repeated to the length of an epoch.

    Args:
        task: the task with the whole training set.
        size: number of distinct examples; with the size of the whole set, the data stay as they are.
        seed: seed of the random draw.
        growth: how the length of an epoch grows with the size, from 0 to 1.
    """
    data: Any = indexed(task.load("train"))
    whole = len(data)
    if size == whole:
        return replace(task, train=data)
    labels = data.targets.numpy() if isinstance(data, Arrays) else np.zeros(whole, dtype=np.int64)
    if labels.dtype != np.int64 or labels.ndim != 1:
        labels = np.zeros(whole, dtype=np.int64)  # without class labels, all examples count as one class
    chosen = balanced_subset(labels, size, seed)
    length = round(epoch_length(size, whole, growth))
    repeated = np.resize(chosen, length)  # the last repetition may be incomplete; its classes are balanced, too
    part = data.subset(repeated) if isinstance(data, Arrays) else Subset(data, repeated.tolist())
    return replace(task, train=part)


def train_subset(request: SubsetRequest) -> TrainAnswer:
    """Train on the subset that belongs to the seed of the recipe."""
    training = request.training
    assert training.recipe is not None
    task = load_task_and_data(training.task)
    return train_task(subset_of(task, request.examples, training.recipe.seed, request.growth), training)


def plan(request: CurveRequest) -> Forecast:
    """Load the task and return a forecast without points: the recipe and the sizes of the data."""
    return plan_task(load_task_and_data(request.task), request)


def plan_task(task: Task, request: CurveRequest) -> Forecast:
    """Do the same as :func:`plan` for a task that is loaded already."""
    metric = _metric(task, request.metric)
    refuse_settings(
        request.settings,
        {
            "workers": "every training has one worker",
            "target_accuracy": "every training makes all its epochs",
            "validation": "parts of the training data are repeated, and would be on both sides",
        },
    )
    recipe = task.recipe.with_settings(request.settings).change(workers=1, **NO_TARGET)
    recipe = recipe if request.epochs is None else recipe.change(epochs=request.epochs)
    train, test = task.load("train"), task.load("test")
    return Forecast(
        task=task.name, examples=count_examples(train), test_examples=count_examples(test),
        chance=_chance(test) if metric.name == ACCURACY.name else None, metric=metric, unit=task.unit,
        batch=recipe.global_batch, epochs=recipe.epochs, growth=request.growth, recipe=recipe.to_toml(),
        environment=(about := environment()), command=about["command"],
    )  # fmt: skip


def _metric(task: Task, name: str | None) -> MetricInfo:
    """Return the metric of a forecast, as far as it is known before the first training."""
    known = {one.name: one.info for one in task.all_metrics}
    if name is None:
        return next(iter(known.values()), LOSS)
    if name not in (LOSS.name, *known):
        raise TaskError(
            f"--target-metric of task {task.name}", expected=", ".join([*known, LOSS.name]), got=name, do="choose one"
        )
    return known.get(name, LOSS)


def _chance(test: Arrays | Dataset[Any]) -> float:
    """Return the error of always predicting the most frequent class; 1 if the classes of the data are not known."""
    if not isinstance(test, Arrays) or test.targets.dtype != torch.int64 or test.targets.ndim != 1:
        return 1.0
    return 1 - int(torch.bincount(test.targets).max()) / len(test)
