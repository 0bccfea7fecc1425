"""Built-in tasks on a table of numbers and categories: one predicts a class, the other a number."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from rueda.records import Recipe
from rueda.tasks import metrics, models
from rueda.tasks.datasets.table import CATEGORIES, NUM_CLASSES, NUM_NUMBERS, table
from rueda.tasks.task import Task, squared_error


class Rows(Dataset[Any]):
    """The rows of a generated table: ``((numbers, categories), target)``."""

    def __init__(self, split: str, target: str) -> None:
        found = table(split)
        self._numbers, self._categories = found.numbers, found.categories
        self._targets: Tensor = getattr(found, target)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (self._numbers[index], self._categories[index]), self._targets[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[tuple[Tensor, Tensor], Tensor]]:
        """Return several rows at once, which is faster than one after another."""
        chosen = torch.tensor(indices)
        columns = (self._numbers[chosen], self._categories[chosen], self._targets[chosen])
        return [((numbers, categories), target) for numbers, categories, target in zip(*columns, strict=True)]


def _table_task(name: str, target: str, outputs: int, **options: Any) -> Task:
    model = partial(models.TablePerceptron, num_numbers=NUM_NUMBERS, categories=CATEGORIES, outputs=outputs)
    recipe = Recipe(batch=32, optimizer="adamw", rate=6e-3, weight_decay=0.01, epochs=8, schedule="cosine")
    train, test = partial(Rows, "train", target), partial(Rows, "test", target)
    return Task(name=name, model=model, train=train, test=test, unit="rows", recipe=recipe, **options)


def table_classes() -> Task:
    """Return a perceptron that predicts the class of each row of a generated table."""
    return _table_task("table-classes", "classes", NUM_CLASSES)


def table_regression() -> Task:
    """Return a perceptron that predicts a number from each row; the variance of the noise is 0.09."""
    return _table_task(
        "table-regression", "values", 0, loss=squared_error, metric=None, metrics=(metrics.mean_absolute_error(),)
    )
