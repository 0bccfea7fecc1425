"""Sums over the examples of an epoch or an evaluation: losses, their weights, and what the task's metrics measure.

Nothing here waits for the device until a figure is asked for. What workers exchange, and what a checkpoint within an
epoch keeps, are sums in float64 (:data:`Sums`), so that any number of workers reports what one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rueda.data.nest import map_tensors
from rueda.errors import TaskError
from rueda.records.metric import LOSS, MetricInfo
from rueda.tasks import Task
from rueda.tasks.metrics import Metric
from rueda.tasks.step import Losses
from rueda.world import World
from rueda.world.device import float64_device, widest_dtype

Sums = dict[str, list[float]]
"""sums by name: ``loss`` has the weighted sum of the losses, the weight and the number of examples; a mean has its
weighted sum, the weight, and whether any value was not a count; a sum has its numbers"""


@dataclass(frozen=True)
class Figures:
    """The loss and the metrics of a set of examples."""

    values: dict[str, float | None]
    """by name, the loss first; None for what was not measured"""
    metrics: tuple[MetricInfo, ...]
    """the metrics in their order, the primary one first; the loss where the task has none"""
    num_examples: int = 0
    weight: float = 0.0
    """what the loss was averaged over: examples, tokens, pixels"""
    counts: dict[str, int] = field(default_factory=dict)
    """by name of a metric whose values are true or false, how many were true"""

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.values["loss"] or 0.0

    @property
    def primary(self) -> float | None:
        """The value of the primary metric."""
        return self.values.get(self.metrics[0].name)


class Totals:
    """Sums of losses, weights and metrics over this worker's examples, kept on the device.

    Args:
        task: provides the metrics.
        device: where the losses are.
        finite_only: leave out batches whose loss is not finite, since their updates are left out, too.
        evaluates: sum each loss in float64, and keep the rows of metrics that gather them, which needs memory; a
            training adds the sums of its batches, as they come out of the update.
    """

    def __init__(self, task: Task, device: torch.device, *, finite_only: bool = False, evaluates: bool = False) -> None:
        device = float64_device(device) if evaluates else device
        dtype = torch.float64 if evaluates else widest_dtype(device)
        self.loss = torch.zeros((), dtype=dtype, device=device)
        self.num_examples = 0
        self._metrics = task.all_metrics
        self._device, self._dtype, self._evaluates, self._finite_only = device, dtype, evaluates, finite_only
        self._weight: Tensor | float = 0.0
        self._left_out: Tensor | float = 0.0  # examples of batches whose loss is not finite
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor | float] = {}
        self._not_counts: set[str] = set()
        self._rows: dict[str, list[Tensor]] = {}

    def add(self, result: Losses, batch: Any, num_examples: int, *, counted: bool = True) -> None:
        """Add the losses of a batch, and what the metrics measure on it.

        Args:
            result: what the step returned: losses, weights, and the outputs that the metrics read.
            batch: the batch.
            num_examples: the number of its examples.
            counted: False adds nothing, since the batch only pads a worker's share.
        """
        if not counted:
            return
        result = self._widened(result.detached())
        # All is measured before anything is added: a batch for which memory is full is added in parts instead.
        with torch.no_grad():
            outputs = map_tensors(Tensor.detach, result.outputs)
            measured = [(one, *self._measured(one, outputs, batch)) for one in self._metrics if self._measures(one)]
        loss, weight = result.total(), result.weight()
        keep: Tensor | None = None
        if self._finite_only:
            keep = loss.isfinite()
            loss = loss.nan_to_num(0.0, 0.0, 0.0) * keep
            self._left_out = self._left_out + num_examples * ~keep
            weight = weight * keep
        self.loss += loss
        self.num_examples += num_examples
        self._weight = self._weight + weight
        with torch.no_grad():
            for metric, values, weights in measured:
                self._add_measured(metric, values, weights, keep)

    def _widened(self, result: Losses) -> Losses:
        """Return losses and weights as they are summed: weights, which count, in the widest type there is."""
        losses, weights = result.losses, result.weights
        if self._evaluates:
            losses = losses.to(self._device).to(self._dtype)  # in this order: Apple's GPUs have no float64
        return result._replace(
            losses=losses, weights=None if weights is None else weights.to(self._device).to(self._dtype)
        )  # fmt: skip

    def _measures(self, metric: Metric) -> bool:
        """Return whether a metric measures anything here: one that gathers rows does so in evaluations only."""
        return metric.measure is not None and (metric.combine != "gather" or self._evaluates)

    def _measured(self, metric: Metric, outputs: Any, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Return the values that a metric measures on a batch, and their weights, if it states any."""
        assert metric.measure is not None
        if outputs is None:
            do = "return Losses(losses, weights, outputs) from the step, or leave the metric out"
            raise TaskError(f"metric {metric.name}", expected="outputs of the step", got=None, do=do)
        found: object = metric.measure(outputs, batch)
        values, weights = found if isinstance(found, tuple) else (found, None)
        if not isinstance(values, Tensor):
            do = "return a tensor, or (values, weights)"
            raise TaskError(f"metric {metric.name}", expected="a tensor", got=type(values).__name__, do=do)
        if metric.combine == "sum" and values.shape != (metric.size,):
            expected, do = f"{metric.size} sums", "state the number of sums: Metric(..., size=...)"
            raise TaskError(f"metric {metric.name}", expected=expected, got=list(values.shape), do=do)
        if weights is not None and weights.shape != values.shape:  # [B] times [B, 1] would be B x B products
            expected, do = f"weights of the values' shape {list(values.shape)}", "return one weight for each value"
            raise TaskError(f"metric {metric.name}", expected=expected, got=list(weights.shape), do=do)
        return values, weights

    def _add_measured(self, metric: Metric, values: Tensor, weights: Tensor | None, keep: Tensor | None) -> None:
        """Add what a metric has measured on a batch, unless ``keep`` is a false flag on the device."""
        name = metric.name
        weight: Tensor | float = 0.0
        if metric.combine == "gather":
            self._rows.setdefault(name, []).append(values if keep is None else values[keep.expand(len(values))])
            return
        if values.is_floating_point():
            self._not_counts.add(name)
            values = values.to(self._device, self._dtype)
        if metric.combine == "sum":
            total = values
        else:
            weight = float(values.numel()) if weights is None else weights.to(self._device, self._dtype).sum()
            total = (values if weights is None else values * weights.to(self._device, self._dtype)).sum()
        if keep is not None:
            total = torch.where(keep, total, torch.zeros_like(total))
            weight = weight * keep
        self._sums[name] = total if name not in self._sums else self._sums[name] + total
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def here(self) -> Figures:
        """Return the figures of this worker alone; synchronises with the device."""
        return figures(self._metrics, self._own(), self._own_rows())

    def mean_loss(self) -> float:
        """Return the mean loss of this worker; synchronises with the device."""
        return float(self.loss) / (float(self._weight) or 1.0)

    def weight(self) -> float:
        """Return what the losses of this worker are averaged over, so far; synchronises with the device."""
        return float(self._weight)

    def sums_over(self, world: World) -> Sums:
        """Sum over all workers, which must all call it; what is gathered is left out."""
        own = self._own()
        flat = torch.tensor([value for values in own.values() for value in values], dtype=torch.float64)
        total = iter(world.all_reduce(flat.to(float64_device(world.device))).tolist())
        return {name: [next(total) for _ in values] for name, values in own.items()}

    def over(self, world: World) -> Figures:
        """Return the figures of all workers, which must all call it."""
        rows = self._own_rows()
        if world.size > 1 and any(metric.combine == "gather" for metric in self._metrics):
            parts = world.all_gather_object(rows)
            rows = {
                metric.name: torch.cat(found)
                for metric in self._metrics
                if (found := [part[metric.name] for part in parts if metric.name in part])
            }
        return figures(self._metrics, self.sums_over(world), rows)

    def _own(self) -> Sums:
        """Return this worker's sums; every worker has the same names, and as many numbers under each."""
        num_counted = self.num_examples - float(self._left_out)
        own: Sums = {LOSS.name: [float(self.loss), float(self._weight), num_counted]}
        for metric in self._metrics:
            if metric.combine == "mean":
                total = self._sums.get(metric.name, 0.0)
                own[metric.name] = [
                    float(total), float(self._weights.get(metric.name, 0.0)), float(metric.name in self._not_counts)
                ]  # fmt: skip
            elif metric.combine == "sum":
                found = self._sums.get(metric.name)
                own[metric.name] = [0.0] * metric.size if found is None else found.cpu().double().tolist()
        return own

    def _own_rows(self) -> dict[str, Tensor]:
        return {name: torch.cat(parts).cpu().double() for name, parts in self._rows.items()}


def added(one: Sums, other: Mapping[str, Sequence[float]]) -> Sums:
    """Add sums to others; what the others lack counts as zero.

    >>> added({"loss": [3.0, 2.0, 2.0]}, {"loss": [1.0, 1.0, 1.0]})
    {'loss': [4.0, 3.0, 3.0]}
    """
    return {
        name: [a + b for a, b in zip(values, other[name], strict=True)] if len(other.get(name, ())) == len(values)
        else values
        for name, values in one.items()
    }  # fmt: skip


def former_sums(found: object, metrics: Sequence[Metric]) -> Sums:
    """Return the sums of a checkpoint; older ones hold a list of the loss, the correct answers and the examples.

    >>> former_sums([12.0, 3.0, 4.0], ())
    {'loss': [12.0, 4.0, 4.0]}
    """
    if isinstance(found, dict):
        return {str(name): [float(value) for value in values] for name, values in found.items()}
    if not isinstance(found, (list, tuple)) or len(found) < 3:
        return {}
    loss, correct, count = (float(value) for value in found[:3])
    sums: Sums = {LOSS.name: [loss, count, count]}
    if metrics and metrics[0].combine == "mean":
        sums[metrics[0].name] = [correct, count, 0.0]
    return sums


def figures(metrics: Sequence[Metric], sums: Sums, rows: Mapping[str, Tensor]) -> Figures:
    """Compute the loss and the metrics from sums and gathered rows.

    Args:
        metrics: the metrics of the task.
        sums: the sums, as :meth:`Totals.sums_over` returns them.
        rows: the rows of the metrics that gather them.
    """
    loss_sum, weight, num_examples = sums[LOSS.name]
    loss = loss_sum / weight if weight else loss_sum
    values: dict[str, float | None] = {LOSS.name: loss}
    infos, counts = [], {}
    for metric in metrics:
        info, value = metric.info, None
        if metric.combine == "loss":
            value = metric.finish(loss)
        elif metric.combine == "gather":
            value = metric.finish(rows[metric.name]) if metric.name in rows else None
        elif metric.combine == "sum":
            value = metric.finish(torch.tensor(sums[metric.name], dtype=torch.float64))
        else:
            total, over, not_counts = sums[metric.name]
            info = metric.resolved(counts=not_counts == 0)
            value = metric.finish(total / over) if over else None
            if not_counts == 0:
                counts[info.name] = round(total)
        infos.append(info)
        values[info.name] = None if value is None else float(value)
    return Figures(values, tuple(infos) or (LOSS,), round(num_examples), weight, counts)


def out_of_range(metrics: Sequence[Metric], found: Figures) -> dict[str, str]:
    """Return a line for each metric whose value is outside the range that it states, by its name.

    An adapted function of whole numbers is taken for an accuracy, which lies between 0 and 1.
    """
    lines = {}
    for metric, info in zip(metrics, found.metrics, strict=False):
        stated, do = metric, "check the metric"
        if metric.percent is None and info.percent:
            stated, do = replace(metric, low=0.0, high=1.0), "return true or false, or floating-point numbers"
        value = found.values.get(info.name)
        if value is not None and not math.isnan(value) and stated.outside(value):
            lines[info.name] = f"{info.name} is {value:.6g}, but it can only be {_range(stated)}; {do}"
    return lines


def _range(metric: Metric) -> str:
    if math.isinf(metric.high):
        return f"{metric.low:g} or more"
    return f"{metric.high:g} or less" if math.isinf(metric.low) else f"from {metric.low:g} to {metric.high:g}"
