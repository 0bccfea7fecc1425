"""Metrics: numbers by which a task is judged, computed exactly on any number of workers.

A metric says what to compute from the outputs of a batch, how the results of batches and workers are combined, and
which way is better. What travels between workers are sums, never means, so that N workers report what one does::

    mean      measure -> values of any shape, or (values, weights); the metric is finish(their mean)
    sum       measure -> numbers that add up, [size]; the metric is finish(their sums)
    gather    measure -> a row for each example, [B] or [B, columns]; the metric is finish(the rows of all workers)
    loss      nothing is measured; the metric is finish(the mean loss)

A task has as many metrics as it likes; the first is the primary one, by which trainings are compared::

    task = rueda.Task(..., metrics=(metrics.accuracy(), metrics.top_k(5)))

and a metric of one's own takes a function of the outputs and the batch::

    def exact(outputs, batch):                                             # [B, T, V] -> bool [B]
        return (outputs.argmax(-1) == batch["tokens"]).all(1)

    metrics=(Metric(name="exact match", measure=exact, percent=True, high=1.0),)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rueda.errors import TaskError
from rueda.records.metric import LOSS, MetricInfo

Measure = Callable[[Any, Any], "Tensor | tuple[Tensor, Tensor]"]
Targets = Callable[[Any], Tensor]
_WAYS = ("mean", "sum", "gather", "loss")
_TARGET_NAMES = ("targets", "target", "labels", "label", "y")


def _unchanged(value: Any) -> float:
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number by which a task is judged.

    >>> error = Metric(name="MAE", measure=lambda outputs, batch: (outputs - batch[1]).abs(), higher_is_better=False)
    >>> error.info
    MetricInfo(name='MAE', higher_is_better=False, percent=False)
    """

    name: str
    """the name in tables, records and options"""
    measure: Measure | None = None
    """(outputs, batch) -> values, see the description of the module; None where ``combine`` is ``loss``"""
    finish: Callable[[Any], float] = _unchanged
    """from the mean (a number), the sums [size] or the rows [N] or [N, columns] (float64 on the CPU) to the metric"""
    combine: str = "mean"
    """how the results of batches and workers are combined: mean, sum, gather or loss"""
    size: int = 1
    """how many numbers ``measure`` returns where ``combine`` is ``sum``"""
    higher_is_better: bool = True
    percent: bool | None = False
    """the metric is a fraction that is written in percent; None: where the measured values are true or false"""
    low: float = -math.inf
    """the lowest value that can be right; a value below it is reported"""
    high: float = math.inf
    """the highest value that can be right; a value above it is reported"""

    def __post_init__(self) -> None:
        what = f"metric {self.name}"
        if not isinstance(self.name, str) or not self.name.strip():
            raise TaskError("Metric.name", expected="a name", got=self.name, do="name the metric")
        if self.combine not in _WAYS:
            raise TaskError(f"{what}, combine", expected=", ".join(_WAYS), got=self.combine, do="choose one")
        if self.name == LOSS.name:
            raise TaskError(f"{what}: every task reports its loss by this name; choose another one")
        if (self.measure is None) != (self.combine == "loss") or not (self.measure is None or callable(self.measure)):
            do = 'pass measure=..., or combine="loss"'
            raise TaskError(f"{what}, measure", expected="a function of (outputs, batch)", got=self.measure, do=do)

    @property
    def info(self) -> MetricInfo:
        """What records state about the metric."""
        return MetricInfo(name=self.name, higher_is_better=self.higher_is_better, percent=bool(self.percent))

    def resolved(self, *, counts: bool) -> MetricInfo:
        """Return what records state about the metric, once it is known whether its values are true or false.

        An adapted function whose values are true or false is an accuracy; one whose values are other numbers keeps its
        own name and is written as the mean that it is.
        """
        if self.percent is not None:
            return self.info
        name = "accuracy" if counts else self.name
        return MetricInfo(name=name, higher_is_better=self.higher_is_better, percent=counts)

    def outside(self, value: float) -> bool:
        """Tell whether a value is outside the range that can be right; rounding is tolerated."""
        room = 1e-9 * max(1.0, *(abs(end) for end in (self.low, self.high) if math.isfinite(end)), 0.0)
        return not self.low - room <= value <= self.high + room


def targets_of(batch: Any) -> Tensor:
    """Return the targets of a batch: the second of a pair, or the values that a dict holds under a usual name.

    Raises:
        TaskError: the batch has another structure; the metric then needs ``targets=``.
    """
    if isinstance(batch, Mapping):
        for name in _TARGET_NAMES:
            if isinstance(batch.get(name), Tensor):
                found: Tensor = batch[name]
                return found
        got = f"a dict of {', '.join(map(str, batch))}"
    elif isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[1]
    else:
        got = type(batch).__name__
    expected = f"(inputs, targets), or a dict with {' or '.join(_TARGET_NAMES[:3])}"
    do = "tell the metric where they are: targets=lambda batch: ..."
    raise TaskError("the targets of a metric", expected=expected, got=got, do=do)


def adapt(function: Callable[[Any, Any], Tensor], *, name: str | None = None) -> Metric:
    """Make a metric of a function ``(outputs, targets) -> [B]``, as ``Task(metric=...)`` takes it.

    Values that are true or false (or whole numbers) make an accuracy, any other numbers their mean.

    >>> adapt(lambda outputs, targets: outputs - targets).name
    'metric'
    """
    given = str(name or getattr(function, "__name__", ""))
    plain = given.replace("_", " ").strip() if given.isidentifier() else "metric"

    def measure(outputs: Any, batch: Any) -> Tensor:
        is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        return function(outputs, batch[1] if is_pair else targets_of(batch))

    return Metric(name=plain if plain != LOSS.name else "metric", measure=measure, percent=None)


# Ready-made metrics: each is a function that makes one; ``targets`` finds the targets in a batch. Targets below 0 are
# left out, as torch's cross-entropy leaves out its ignore_index of -100: padding, pixels without a label.


def accuracy(*, targets: Targets = targets_of, class_dim: int | None = None) -> Metric:
    """Return the fraction of targets for which the largest output is the right class.

    Args:
        targets: finds the targets in a batch: [B], or [B, ...] for tokens or pixels; those below 0 are left out.
        class_dim: the dimension of the outputs that has the classes; by default 1, as in torch's cross-entropy. Give -1
            for tokens, [B, T, classes].

    >>> right, counted = accuracy().measure(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), (None, torch.tensor([1, -100])))
    >>> right, counted                                                     # the second is left out
    (tensor([ True, False]), tensor([ True, False]))
    """

    def measure(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
        found = targets(batch)
        _check_classes("accuracy", found)
        return _classes_last("accuracy", outputs, found, class_dim).argmax(-1) == found, found >= 0

    return Metric(name="accuracy", measure=measure, percent=True, low=0.0, high=1.0)


def top_k(k: int = 5, *, targets: Targets = targets_of, class_dim: int | None = None) -> Metric:
    """Return the fraction of targets whose class is among the ``k`` largest outputs; see :func:`accuracy`.

    >>> top_k(2).measure(torch.tensor([[0.1, 0.7, 0.2]]), (None, torch.tensor([2])))[0]
    tensor([True])
    """

    def measure(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
        found = targets(batch)
        _check_classes(f"top-{k}", found)
        scores = _classes_last(f"top-{k}", outputs, found, class_dim)
        best = scores.topk(min(k, scores.shape[-1]), dim=-1).indices
        return (best == found.unsqueeze(-1)).any(-1), found >= 0

    return Metric(name=f"top-{k}", measure=measure, percent=True, low=0.0, high=1.0)


def mean_absolute_error(*, targets: Targets = targets_of) -> Metric:
    """Return the mean absolute error (MAE) of a regression; outputs and targets have the same shape."""

    def measure(outputs: Any, batch: Any) -> Tensor:
        return (outputs - _same_shape("MAE", targets(batch), outputs)).abs()  # type: ignore[no-any-return]

    return Metric(name="MAE", measure=measure, higher_is_better=False, low=0.0)


def root_mean_squared_error(*, targets: Targets = targets_of) -> Metric:
    """Return the root mean squared error (RMSE) of a regression: the root of the mean over all workers' examples.

    >>> root_mean_squared_error().finish(4.0)
    2.0
    """

    def measure(outputs: Any, batch: Any) -> Tensor:
        return (outputs - _same_shape("RMSE", targets(batch), outputs)).square()  # type: ignore[no-any-return]

    return Metric(name="RMSE", measure=measure, finish=lambda mean: math.sqrt(max(mean, 0.0)), higher_is_better=False,
                  low=0.0)  # fmt: skip


def perplexity() -> Metric:
    """Return the perplexity of a language model: the exponential of the mean loss of all tokens.

    >>> round(perplexity().finish(math.log(50.0)), 9)
    50.0
    """
    return Metric(name="perplexity", combine="loss", finish=_exp, higher_is_better=False, low=1.0)


def f1(
    *, positive: int = 1, threshold: float = 0.0, targets: Targets = targets_of, class_dim: int | None = None
) -> Metric:
    """Return the F1 score, 2 tp / (2 tp + fp + fn), from the counts of true and false positives and false negatives.

    Args:
        positive: the class that is to be found, of outputs [B, classes].
        threshold: outputs of one number each, [B] or [B, 1], are positive above it; targets are 0 or 1.
        targets: finds the targets in a batch; those below 0 are left out.
        class_dim: the dimension of the outputs that has the classes, as in :func:`accuracy`.

    >>> f1().finish(torch.tensor([8.0, 2.0, 2.0]))
    0.8
    """

    def measure(outputs: Any, batch: Any) -> Tensor:
        found = targets(batch)
        if outputs.dim() == found.dim() + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        if outputs.dim() > found.dim():
            said = _classes_last("F1", outputs, found, class_dim).argmax(-1) == positive
            true = found == positive
        else:
            said, true = outputs > threshold, _same_shape("F1", found, outputs) > 0.5
        said = said & (found >= 0)
        return torch.stack([(said & true).sum(), (said & ~true).sum(), (~said & true).sum()])

    def finish(sums: Tensor) -> float:
        hits, wrong, missed = sums.tolist()
        return 2 * hits / (2 * hits + wrong + missed) if hits else 0.0

    return Metric(name="F1", measure=measure, finish=finish, combine="sum", size=3, low=0.0, high=1.0)


def auc(*, targets: Targets = targets_of) -> Metric:
    """Return the area under the ROC curve: the chance that a positive example has a larger output than a negative one.

    It is exact: the outputs of all workers are gathered and ranked, and ties count half. Outputs are [B] or [B, 1], or
    [B, 2], of which the difference counts; targets are 0 or 1. It is computed on evaluation data only.

    >>> rows = torch.tensor([[0.1, 0.0], [0.4, 0.0], [0.35, 1.0], [0.8, 1.0]])
    >>> auc().finish(rows)
    0.75
    """

    def measure(outputs: Any, batch: Any) -> Tensor:
        found = targets(batch)
        is_pair = outputs.dim() == 2 and outputs.shape[1] == 2 and found.numel() == len(outputs)
        scores = outputs[:, 1] - outputs[:, 0] if is_pair else outputs.flatten()
        return torch.stack([scores.double(), _same_shape("AUC", found.flatten(), scores).double()], 1)

    return Metric(name="AUC", measure=measure, finish=_area, combine="gather", low=0.0, high=1.0)


def pass_rate(passes: Callable[[Any, Any], Tensor], *, name: str = "pass rate") -> Metric:
    """Return the fraction of examples that pass a test of one's own: ``passes(outputs, batch)`` returns bool [B]."""

    def measure(outputs: Any, batch: Any) -> Tensor:
        found = passes(outputs, batch)
        if found.dtype != torch.bool:
            do = "return a comparison, such as score > 0.5"
            raise TaskError(f"metric {name}", expected="true or false for each example", got=found.dtype, do=do)
        return found

    return Metric(name=name, measure=measure, percent=True, low=0.0, high=1.0)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _area(rows: Tensor) -> float:
    """Compute the area under the ROC curve from rows of (score, target), which may come in any order."""
    scores, is_positive = rows[:, 0], rows[:, 1] > 0.5
    num_positive = int(is_positive.sum())
    num_negative = len(rows) - num_positive
    if not num_positive or not num_negative or bool(scores.isnan().any()):
        return math.nan
    values, place = scores.unique(sorted=True, return_inverse=True)  # type: ignore[no-untyped-call]
    positives = torch.zeros(len(values), dtype=torch.int64).index_add_(
        0, place[is_positive], torch.ones(num_positive, dtype=torch.int64)
    )
    negatives = torch.zeros(len(values), dtype=torch.int64).index_add_(
        0, place[~is_positive], torch.ones(num_negative, dtype=torch.int64)
    )
    below = negatives.cumsum(0) - negatives
    doubled = int((positives * (2 * below + negatives)).sum())  # whole numbers: the order of the rows cannot matter
    return doubled / (2 * num_positive * num_negative)


def _check_classes(name: str, targets: Tensor) -> None:
    """Refuse targets that are no class labels."""
    if targets.is_floating_point():
        raise TaskError(
            f"metric {name} needs class labels, but the targets are floating point; choose a metric of regression, "
            "such as metrics.mean_absolute_error()"
        )


def _classes_last(name: str, outputs: Tensor, targets: Tensor, class_dim: int | None) -> Tensor:
    """Return the outputs with the classes in the last dimension; refuse outputs whose other dimensions do not fit.

    Without ``class_dim`` the classes are in dimension 1. If the outputs have another shape, or one in which they could
    be in the last dimension too (as many tokens as classes), it has to be given: a wrong guess would go unnoticed.
    """
    dim = 1 if class_dim is None else class_dim
    fits = -outputs.dim() <= dim < outputs.dim() and outputs.movedim(dim, -1).shape[:-1] == targets.shape
    could_be_last = outputs.dim() > 2 and outputs.shape[:-1] == targets.shape
    fits = fits and outputs.shape[dim] > 1  # the largest of one output says nothing
    if not fits or (class_dim is None and could_be_last):
        expected = f"outputs of the targets' shape {list(targets.shape)} and one more dimension, the classes"
        do = "say which dimension has the classes: class_dim=-1 for [B, T, classes], 1 for [B, classes, ...]"
        raise TaskError(f"metric {name}", expected=expected, got=list(outputs.shape), do=do)
    return outputs.movedim(dim, -1)


def _same_shape(name: str, targets: Tensor, outputs: Tensor) -> Tensor:
    """Return the targets; refuse those that would be broadcast, [B] against [B, 1], which gives B x B differences."""
    if targets.shape != outputs.shape:
        expected, do = f"targets of the outputs' shape {list(outputs.shape)}", "let the model return that shape"
        raise TaskError(f"metric {name}", expected=expected, got=list(targets.shape), do=do)
    return targets
