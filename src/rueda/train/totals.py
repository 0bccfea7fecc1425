"""Sums over the examples of an epoch: the losses, their weights and the correct answers of a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rueda.tasks import Task
from rueda.tasks.step import Losses, split_pair
from rueda.world import World
from rueda.world.device import float64_device, widest_dtype


class Totals:
    """Sums of loss, weights and correct answers over this worker's examples, kept on the device.

    Args:
        task: provides the metric.
        device: where the losses are.
        finite_only: leave out batches whose loss is not finite, since their updates are left out, too.
    """

    def __init__(self, task: Task, device: torch.device, *, finite_only: bool = False) -> None:
        self.loss = torch.zeros((), dtype=widest_dtype(device), device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.num_examples = 0
        self._task = task
        self._num_left_out = torch.zeros((), dtype=torch.int64, device=device) if finite_only else None
        self._weight: Tensor | float = 0.0  # what the loss is averaged over, of tasks with a step
        self._weight_left_out: Tensor | float = 0.0

    def add(self, result: Losses, batch: Any, num_examples: int) -> None:
        """Add a batch of ``num_examples``, given its losses and the outputs that the metric reads."""
        loss, num_correct = result.detached().total(), self._num_correct(result, batch)
        if self._num_left_out is not None:
            is_finite = loss.isfinite()
            loss, num_correct = loss.nan_to_num(0.0, 0.0, 0.0) * is_finite, num_correct * is_finite
            self._num_left_out += num_examples * ~is_finite
            if self._task.step is not None:
                self._weight_left_out = self._weight_left_out + result.weight() * ~is_finite
        self.loss += loss
        self.correct += num_correct
        self.num_examples += num_examples
        if self._task.step is not None:
            self._weight = self._weight + result.weight()

    def means(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy on this worker; synchronises with the device."""
        count = self._num_counted()
        return float(self.loss) / (self._weight_counted(count) or 1), int(self.correct) / max(1, count)

    def sums_over(self, world: World) -> list[float]:
        """Sum loss, correct answers, examples and weights over all workers, which must all call it."""
        count = self._num_counted()
        counts = torch.tensor([float(count), self._weight_counted(count)], dtype=torch.float64)
        sums = torch.cat([torch.stack([self.loss.cpu().double(), self.correct.cpu().double()]), counts])
        total: list[float] = world.all_reduce(sums.to(float64_device(world.device))).tolist()
        return total

    def _num_correct(self, result: Losses, batch: Any) -> Tensor | int:
        if self._task.metric is None:
            return 0
        return self._task.correct(result.outputs, split_pair(batch, self._task.name)[1]).sum()

    def _num_counted(self) -> int:
        return self.num_examples - (0 if self._num_left_out is None else int(self._num_left_out))

    def _weight_counted(self, num_counted: int) -> float:
        """Return what the loss is averaged over: the weights of a task with a step, or else the examples."""
        return num_counted if self._task.step is None else float(self._weight) - float(self._weight_left_out)
