"""The task: what to train. A model factory, training and test data, a loss, a metric.

One's own task is a Python file that defines ``task``::

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

Data = Arrays | Dataset[Any]
PerExample = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each example, [B, classes] and [B] -> [B]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each example, [B] and [B] -> [B]."""
    return (outputs - targets).square()


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the largest output is the right class, [B, classes] and [B] -> bool [B]."""
    return outputs.argmax(1) == targets


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to train; how to train it is the :class:`rueda.Recipe`."""

    name: str
    """what reports call it"""
    model: Callable[..., nn.Module]
    """builds the model; takes the recipe's ``model`` table as keyword arguments"""
    train: Data | Callable[[], Data]
    """training data, or a function that loads them when they are needed"""
    test: Data | Callable[[], Data]
    """test data, or a function that loads them"""
    loss: PerExample = cross_entropy
    """(outputs, targets) -> a loss an example, shape [B]: torch's with ``reduction="none"``"""
    metric: PerExample | None = accuracy
    """(outputs, targets) -> True where an example is right, shape [B]; None if there is no such thing"""
    augment: tuple[Augmentation, ...] = ()
    """random changes of the training images (array data only)"""
    recipe: Recipe = field(default_factory=Recipe)
    """how one worker trains it well: the base of every other recipe"""

    def __post_init__(self) -> None:
        for name in ("model", "loss"):
            if not callable(getattr(self, name)):
                raise TaskError(
                    f"Task.{name}", expected="a function", got=getattr(self, name), do="pass the function itself"
                )

    def load(self, split: str) -> Data:
        """Load ``train`` or ``test`` data, and refuse a stream: workers share examples by their numbers."""
        source = self.train if split == "train" else self.test
        data: Any = source() if callable(source) and not isinstance(source, (Arrays, Dataset)) else source
        if not isinstance(data, (Arrays, Dataset)):
            expected, do = "rueda.Arrays or a torch Dataset", "wrap the tensors: rueda.Arrays(inputs, targets)"
        elif isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            expected = "examples with numbers and a length"
            do = "give it __len__ and __getitem__, or read the stream into rueda.Arrays"
        else:
            return data
        what = f"the {split} data of task {self.name}"
        raise TaskError(what, expected=expected, got=type(data).__name__, do=do)

    def build(self, recipe: Recipe) -> nn.Module:
        """Build the model that the recipe asks for."""
        try:
            model = self.model(**recipe.model)
        except TypeError as error:
            raise TaskError(
                f"the model of task {self.name} does not take model = {dict(recipe.model)} of the recipe ({error}); "
                "correct the recipe or the factory"
            ) from None
        if not isinstance(model, nn.Module):
            raise TaskError(
                f"the model of task {self.name}",
                expected="a torch.nn.Module",
                got=type(model).__name__,
                do="return the module from the factory",
            )
        return model

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of each example, [B], and refuse a loss that has been averaged already."""
        losses = self.loss(outputs, targets)
        if losses.shape != targets.shape[:1]:
            raise TaskError(
                f"the loss of task {self.name}",
                expected=f"one value an example, shape [{targets.shape[0]}]",
                got=list(losses.shape),
                do='use reduction="none"',
            )
        return losses

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Say which examples are right, [B] of 0 and 1 as int64; zeros without a metric."""
        if self.metric is None:
            return torch.zeros(targets.shape[0], dtype=torch.int64, device=outputs.device)
        return self.metric(outputs.detach(), targets).to(torch.int64)
