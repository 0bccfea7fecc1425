"""The task says what to train: a model factory, training and test data, a loss and a metric.

A user's own task is a Python file that defines ``task``::

    import rueda
    from torch import nn

    task = rueda.Task(
        name="spirals",
        model=lambda width=32: nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3)),
        train=lambda: rueda.Arrays(inputs, targets),
        test=lambda: rueda.Arrays(test_inputs, test_targets),
    )

and ``rueda train spirals.py --workers 4`` trains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset

from rueda.data import Arrays, Augmentation
from rueda.errors import TaskError
from rueda.records import Recipe
from rueda.records.task_file import TaskFile

Data = Arrays | Dataset[Any]
PerExample = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example, [B, classes] and [B] -> [B]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each example, [B] and [B] -> [B]."""
    return (outputs - targets).square()


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Tell for each example whether the largest output is the right class, [B, classes] and [B] -> bool [B]."""
    check_labels(targets)
    return outputs.argmax(1) == targets


def check_labels(targets: Tensor) -> None:
    """Refuse floating-point targets, as in regression, for which the default metric would always tell 0."""
    if targets.is_floating_point():
        raise TaskError(
            "the task's metric: accuracy, the default, needs class labels, but the targets are floating point; "
            "give metric=None (no accuracy) or a metric of its own"
        )


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to train; the :class:`rueda.Recipe` says how."""

    name: str
    """the name in reports and folders"""
    model: Callable[..., nn.Module]
    """builds the model; takes the recipe's ``model`` table as keyword arguments"""
    train: Data | Callable[[], Data]
    """training data, or a function that loads them"""
    test: Data | Callable[[], Data]
    """test data, or a function that loads them"""
    loss: PerExample = cross_entropy
    """(outputs, targets) -> the loss of each example, shape [B]: torch's losses with ``reduction="none"``"""
    metric: PerExample | None = accuracy
    """(outputs, targets) -> whether each example is correct, shape [B]; None for a task without accuracy"""
    augment: tuple[Augmentation, ...] = ()
    """data augmentation of the training images (array data only)"""
    recipe: Recipe = field(default_factory=Recipe)
    """the recipe with which one worker trains the task well, the base of all other recipes"""
    file: TaskFile | None = field(default=None, compare=False, repr=False)
    """the file that defines it; :func:`rueda.load_task` sets it"""

    def __post_init__(self) -> None:
        for name in ("model", "loss"):
            if not callable(getattr(self, name)):
                raise TaskError(
                    f"Task.{name}", expected="a function", got=getattr(self, name), do="pass the function itself"
                )

    def load(self, split: str) -> Data:
        """Load the ``train`` or ``test`` data.

        Raises:
            TaskError: the data are not a data set, or are a stream, which cannot be partitioned by index; or the metric
                is the accuracy, but the targets are not class labels.
        """
        source = self.train if split == "train" else self.test
        data: Any = source() if callable(source) and not isinstance(source, (Arrays, Dataset)) else source
        if not isinstance(data, (Arrays, Dataset)):
            expected, do = "rueda.Arrays or a torch Dataset", "wrap the tensors: rueda.Arrays(inputs, targets)"
        elif isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            expected = "a data set with an index and a length"
            do = "give it __len__ and __getitem__, or read the stream into rueda.Arrays"
        else:
            if isinstance(data, Arrays) and self.metric is accuracy:
                check_labels(data.targets)
            return data
        what = f"the {split} data of task {self.name}"
        raise TaskError(what, expected=expected, got=type(data).__name__, do=do)

    def build(self, recipe: Recipe) -> nn.Module:
        """Build the model with the arguments of the recipe's ``model`` table."""
        try:
            model: Any = self.model(**recipe.model)
        except TypeError as error:
            for name, value in recipe.model.items():
                if f"unexpected keyword argument {name!r}" in str(error):
                    raise TaskError(
                        f"model.{name} = {value} of the recipe needs a model factory with a parameter "
                        f"{name}{'=False' * (value is True)}, which that of task {self.name} lacks; add it, or leave "
                        "this out"
                    ) from None
            raise TaskError(
                f"the model of task {self.name} does not take model = {dict(recipe.model)} of the recipe ({error}); "
                "correct the recipe or the factory"
            ) from None
        except Exception as error:
            if not recipe.model:  # a mistake within the factory, which its traceback shows
                raise
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise TaskError(
                f"the model of task {self.name} cannot be built with model = {dict(recipe.model)} of the recipe "
                f"({what}); correct these values"
            ) from None
        if not isinstance(model, nn.Module):
            expected, do = "a torch.nn.Module", "return the module from the factory"
            raise TaskError(f"the model of task {self.name}", expected=expected, got=type(model).__name__, do=do)
        return model

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of each example, [B]; raise TaskError if the task's loss is already reduced."""
        losses = self.loss(outputs, targets)
        if losses.shape != targets.shape[:1]:
            expected, do = f"one value per example, shape [{targets.shape[0]}]", 'use reduction="none"'
            raise TaskError(f"the loss of task {self.name}", expected=expected, got=list(losses.shape), do=do)
        return losses

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for each correct example and 0 for the others, int64 [B]; zeros if the task has no metric."""
        if self.metric is None:
            return torch.zeros(targets.shape[0], dtype=torch.int64, device=outputs.device)
        return self.metric(outputs.detach(), targets).to(torch.int64)
