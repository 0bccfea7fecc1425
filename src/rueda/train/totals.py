"""Sums over the examples of an epoch: the losses and the correct answers of a training."""

from __future__ import annotations

import torch
from torch import Tensor

from rueda.world import World
from rueda.world.device import float64_device, widest_dtype


class Totals:
    """Sums of loss and correct answers over this worker's examples, kept on the device.

    Args:
        device: where the losses are.
        finite_only: leave out batches whose loss is not finite, since their updates are left out, too.
    """

    def __init__(self, device: torch.device, *, finite_only: bool = False) -> None:
        self.loss = torch.zeros((), dtype=widest_dtype(device), device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.num_examples = 0
        self._num_left_out = torch.zeros((), dtype=torch.int64, device=device) if finite_only else None

    def add(self, losses: Tensor, correct: Tensor) -> None:
        """Add a batch, given the losses [B] and the correct answers [B]."""
        loss, num_correct = losses.detach().sum(), correct.sum()
        if self._num_left_out is not None:
            is_finite = loss.isfinite()
            loss, num_correct = loss.nan_to_num(0.0, 0.0, 0.0) * is_finite, num_correct * is_finite
            self._num_left_out += losses.shape[0] * ~is_finite
        self.loss += loss
        self.correct += num_correct
        self.num_examples += losses.shape[0]

    def means(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy on this worker; synchronises with the device."""
        count = max(1, self._num_counted())
        return float(self.loss) / count, int(self.correct) / count

    def sums_over(self, world: World) -> list[float]:
        """Sum loss, correct answers and examples over all workers, which must all call it."""
        sums = torch.stack(
            [self.loss.cpu().double(), self.correct.cpu().double(), torch.tensor(float(self._num_counted()))]
        )
        total: list[float] = world.all_reduce(sums.to(torch.float64).to(float64_device(world.device))).tolist()
        return total

    def _num_counted(self) -> int:
        return self.num_examples - (0 if self._num_left_out is None else int(self._num_left_out))
