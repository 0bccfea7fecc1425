"""The task says what to train: a model factory, training, validation and test data, a loss or a step, and metrics.

A user's own task is a Python file that defines ``task``::

    import rueda
    from torch import nn

    task = rueda.Task(
        name="spirals",
        model=lambda width=32: nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3)),
        train=lambda: rueda.Arrays(inputs, targets),
        test=lambda: rueda.Arrays(test_inputs, test_targets),
    )

and ``rueda train spirals.py --workers 4`` trains it. Batches of any other structure need a ``step``
(:mod:`rueda.tasks.step`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from rueda.data import Arrays, Augmentation
from rueda.data.loader import is_stream
from rueda.data.nest import map_tensors, num_examples, tensors
from rueda.errors import TaskError
from rueda.records import Recipe
from rueda.records.task_file import TaskFile
from rueda.tasks.metrics import Metric, adapt
from rueda.tasks.phase import Phase
from rueda.tasks.splits import check_tests, check_validation, split_off
from rueda.tasks.step import Losses, Step, apply_model, as_losses, check_per_example, split_pair

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
    """Refuse floating-point targets, as in regression: the accuracy, the default metric, would always be 0."""
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
    test: Data | Callable[[], Data] | Mapping[str, Data | Callable[[], Data]]
    """test data, or a function that loads them; or several sets by name, of which the first is the primary one"""
    validation: Data | Callable[[], Data] | float | None = None
    """validation data, on which the best checkpoint, targets and choices are decided, so that test data are only
    reported; a number such as 0.1 splits that fraction off the training data"""
    loss: PerExample = cross_entropy
    """(outputs, targets) -> the loss of each example, shape [B]: torch's losses with ``reduction="none"``"""
    metric: PerExample | None = accuracy
    """(outputs, targets) -> whether each example is correct, shape [B]; None for a task without an accuracy; a task
    with a ``step`` has none unless it is given"""
    metrics: tuple[Metric, ...] = ()
    """metrics by name (:mod:`rueda.tasks.metrics`), the primary one first; instead of ``metric``"""
    tolerance: float | None = None
    """how much worse a study may find the primary metric and still call it kept: 0.01, the default, is one point of a
    metric in percent, and otherwise one percent of one worker's value"""
    step: Step | None = None
    """(model, batch) -> losses and weights, instead of a loss, for any batch (:mod:`rueda.tasks.step`)"""
    collate: Callable[[list[Any]], Any] | None = None
    """[example, ...] -> a batch: any nest of tensors; by default torch's ``default_collate`` (not for array data)"""
    optimizer: Callable[[nn.Module, Recipe], torch.optim.Optimizer] | None = None
    """(model, recipe) -> the optimizer that is used instead of the recipe's; the schedule scales the rates of all its
    parameter groups alike"""
    layers: Callable[[Any], Sequence[nn.Module]] | None = None
    """model -> its layers, in the order in which a batch passes through them, so that a pipeline can cut it into stages
    (:mod:`rueda.train.parallel.stages`); an ``nn.Sequential`` and the built-in transformers need none; those that are
    modules of the model are gathered one by one if it is sharded"""
    tensor_plan: Mapping[str, Any] | None = None
    """name of a module -> a style of ``torch.distributed.tensor.parallel``, how tensor parallelism splits the model
    (:mod:`rueda.train.parallel.tensor_plan`); pairs of linear layers and the built-in transformers need none"""
    phases: tuple[Phase, ...] = ()
    """several updates from each batch, each of other parameters, as a GAN needs them (:mod:`rueda.tasks.phase`); an
    evaluation computes the losses by ``step``, or by the step of the first phase if the task has none"""
    unit: str = "examples"
    """what the throughput counts: ``images``, ``examples`` or what else an example is called; with ``tokens`` it counts
    the sum of the weights of the losses instead"""
    augment: tuple[Augmentation, ...] = ()
    """data augmentation of the training images (array data only)"""
    recipe: Recipe = field(default_factory=Recipe)
    """the recipe with which one worker trains the task well, the base of all other recipes"""
    file: TaskFile | None = field(default=None, compare=False, repr=False)
    """the file that defines it; :func:`rueda.load_task` sets it"""

    def __post_init__(self) -> None:
        for name in ("model", "loss", "step", "collate", "optimizer", "layers"):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name in ("step", "collate", "optimizer", "layers")):
                raise TaskError(f"Task.{name}", expected="a function", got=value, do="pass the function itself")
        if self.phases:
            object.__setattr__(self, "phases", tuple(self.phases))
            wrong = [type(each).__name__ for each in self.phases if not isinstance(each, Phase)]
            if wrong:
                raise TaskError("Task.phases", expected="rueda.tasks.Phase", got=wrong[0], do="write Phase(name=...)")
            if self.step is None:
                object.__setattr__(self, "step", self.phases[0].step)
        if self.step is not None:
            if self.loss is not cross_entropy:
                raise TaskError(f"task {self.name}: give it a loss or a step, not both; a step computes its own losses")
            if self.metric is accuracy:  # the default, which would need batches of (inputs, targets)
                object.__setattr__(self, "metric", None)
        self._check_metrics()
        check_validation(self.validation, self.name)
        if isinstance(self.test, Mapping):
            check_tests(self.test, self.name)

    def _check_metrics(self) -> None:
        object.__setattr__(self, "metrics", tuple(self.metrics))
        given: tuple[object, ...] = self.metrics
        for one in given:
            if not isinstance(one, Metric):
                do = "write metrics.accuracy(), or metric=... for a function of (outputs, targets)"
                raise TaskError("Task.metrics", expected="Metrics", got=type(one).__name__, do=do)
        if self.metrics and self.metric is accuracy:  # the default, which the metrics replace
            object.__setattr__(self, "metric", None)
        names = [one.name for one in self.all_metrics]
        if len(set(names)) < len(names):
            raise TaskError("Task.metrics", expected="different names", got=", ".join(names), do="rename one")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise TaskError("Task.tolerance", expected="0 or more", got=self.tolerance, do="give e.g. 0.01")

    @property
    def all_metrics(self) -> tuple[Metric, ...]:
        """The metrics, the primary one first, the function ``metric`` among them; empty: only the loss counts."""
        if self.metric is None:
            return self.metrics
        adapted = adapt(self.metric)
        if self.metric is accuracy:
            adapted = replace(adapted, percent=True, low=0.0, high=1.0)
        return (*self.metrics, adapted)

    @property
    def test_names(self) -> tuple[str, ...]:
        """The names of the test sets in records: ``test``, the primary one, and then the others."""
        return ("test", *(list(self.test)[1:] if isinstance(self.test, Mapping) else ()))

    def _source(self, split: str) -> Any:
        """Return the data of a split, or the function that loads them."""
        if split in ("train", "validation"):
            return getattr(self, split)
        if not isinstance(self.test, Mapping):
            return self.test
        return next(iter(self.test.values())) if split == "test" else self.test[split]

    def load(self, split: str) -> Data:
        """Load the ``train``, ``validation`` or ``test`` data, or those of a further test set by its name.

        A fraction for validation is split off the training data, which then hold only the rest.

        Raises:
            TaskError: the data are neither a data set nor a stream; or the metric is the accuracy, but the targets are
                not class labels.
        """
        if isinstance(self.validation, (int, float)) and split in ("train", "validation"):
            whole = replace(self, validation=None).load("train")
            parts: tuple[Data, Data] = split_off(whole, float(self.validation), self.name)
            return parts[split == "validation"]
        source = self._source(split)
        data: Any = source() if callable(source) and not isinstance(source, (Arrays, Dataset)) else source
        if isinstance(data, Arrays) and self.metric is accuracy:
            check_labels(data.targets)
        if _is_data(data):
            found: Data = data
            return found
        do = "wrap the tensors: rueda.Arrays(inputs, targets)"
        if isinstance(data, DataLoader):
            do = "give the task its data set, and its collate_fn as collate=...; the recipe has the batch size"
        what, expected = f"the {split} data of task {self.name}", "rueda.Arrays, a torch Dataset or a stream"
        raise TaskError(what, expected=expected, got=type(data).__name__, do=do)

    def for_recipe(self, recipe: Recipe) -> Task:
        """Return the task with the validation data that the recipe holds out, divided once; the task itself if none.

        Raises:
            TaskError: the task has validation data of its own.
        """
        if recipe.validation is None:
            return self
        if self.validation is not None:
            raise TaskError(
                f"validation = {recipe.validation:g} of the recipe would hold out training data, but task {self.name} "
                "has validation data of its own; leave it out"
            )
        train, validation = split_off(self.load("train"), recipe.validation, self.name)
        return replace(self, train=train, validation=validation)

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

    def run_step(self, model: nn.Module, batch: Any) -> Losses:
        """Compute the losses of a batch by the task's step, or else by its loss on (inputs, targets).

        Raises:
            TaskError: the batch does not fit the loss, or the step returns something else than losses.
        """
        if self.step is not None:
            return as_losses(self.step(model, batch), self.name)
        inputs, targets = split_pair(batch, self.name)
        outputs = apply_model(model, inputs)
        return Losses(self.losses(outputs, targets), None, outputs)

    def for_phase(self, number: int) -> Task:
        """Return the task of one phase, whose step is that of the phase; only the first phase measures the metrics."""
        metric, metrics = (self.metric, self.metrics) if number == 0 else (None, ())
        return replace(self, step=self.phases[number].step, phases=(), metric=metric, metrics=metrics)

    def losses(self, outputs: Any, targets: Any) -> Tensor:
        """Compute the loss of each example, [B]; raise TaskError if the task's loss is already reduced."""
        return check_per_example(self.loss(outputs, targets), targets, self.name)

    def correct(self, outputs: Any, targets: Any) -> Tensor:
        """Return 1 for each correct example and 0 for the others, int64 [B]; zeros if the task has no metric."""
        if self.metric is None:
            return torch.zeros(num_examples(targets), dtype=torch.int64, device=next(tensors(targets)).device)
        return self.metric(map_tensors(Tensor.detach, outputs), targets).to(torch.int64)


def _is_data(data: object) -> bool:
    """Return whether data are a data set or a stream that can be read in every epoch, which an iterator cannot."""
    if isinstance(data, (DataLoader, Iterator, Tensor, str)):
        return False
    return (
        isinstance(data, (Arrays, Dataset))
        or is_stream(data)
        or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))
    )
