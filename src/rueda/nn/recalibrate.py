"""Batch-norm statistics recomputed exactly after training, and a rule that says when that is needed.

A running average forgets its initial value (mean 0, variance 1) by a factor (1 - momentum) an update. A large batch
makes few updates: after an epoch of 16 steps at momentum 0.1, 0.9^16 = 18.5 % of the average are still the initial
value, and the network, right in training mode, is wrong in evaluation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rueda.errors import DataError
from rueda.nn.convert import BatchNorm
from rueda.nn.ghost_batch_norm import GhostBatchNorm
from rueda.world import World, current


def stale(momentum: float | None, num_updates: int) -> float:
    """Return how much of a running average is still its initial value: (1 - momentum)^num_updates.

    >>> round(stale(0.1, 16), 3), round(stale(0.1, 44), 3)
    (0.185, 0.01)
    >>> stale(None, 16)  # a cumulative average forgets it with the first update
    0.0
    """
    if momentum is None:
        return 0.0 if num_updates > 0 else 1.0
    return float((1.0 - momentum) ** num_updates)


def needs_recalibration(
    model: nn.Module, num_updates: int, *, local_batch: int | None = None, tolerance: float = 0.01
) -> bool:
    """Say whether any layer's running averages still hold more than `tolerance` of their initial value.

    Args:
        model: the model in training.
        num_updates: steps made since the averages were last reset or recalibrated.
        local_batch: examples a worker sees a step; with it, each ghost of a ghost batch norm counts as an update.
        tolerance: the share that may remain; 0.01 asks for 44 updates at momentum 0.1.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> needs_recalibration(model, 16), needs_recalibration(model, 100)
    (True, False)
    """
    for layer in _tracked(model):
        per_step = 1
        if isinstance(layer, GhostBatchNorm) and local_batch is not None:
            per_step = max(1, math.ceil(local_batch / layer.ghost_batch))
        if stale(layer.momentum, num_updates * per_step) > tolerance:
            return True
    return False


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Callable[[nn.Module, Any], object] | None = None,
    world: World | None = None,
) -> int:
    """Replace every running mean and variance by the exact ones over all the data given.

    Each batch passes through the model once. Batch-norm layers normalise by the batch (ghost and synchronised ones by
    the whole local batch) and note its statistics; everything else runs as in evaluation, so dropout is off: these are
    the inputs the layers meet in evaluation. Over batches and workers the statistics are pooled by their
    counts, exactly: mean, and unbiased variance, of all values. Workers may bring different numbers of batches.

    What a layer sees depends on how the layers before it normalise, here by batch statistics: batches of the
    training's size or larger are right. Parameters, gradients, modes and `num_batches_tracked` are not touched, and
    after an error the old statistics stand.

    Args:
        model: the model, also wrapped by DistributedDataParallel.
        batches: inputs, or (inputs, ...) of which the first is used.
        forward: how to run a batch, for models that take more: called with (model, batch).
        world: the workers to pool over; by default `rueda.world.current()`.

    Returns:
        How many layers were recalibrated.

    >>> model = nn.Sequential(nn.BatchNorm1d(1))
    >>> recalibrate(model, [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0], [5.0]])])
    1
    >>> model[0].running_mean, model[0].running_var
    (tensor([3.]), tensor([2.5000]))
    """
    if isinstance(model, DistributedDataParallel):
        model = model.module
    tallies = {layer: _Tally(layer) for layer in _tracked(model)}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for layer, tally in tallies.items():
            layer.forward = functools.partial(_observe, layer, tally)  # type: ignore[method-assign]
        with torch.no_grad():
            for batch in batches:
                if forward is not None:
                    forward(model, batch)
                else:
                    model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for layer in tallies:
            layer.__dict__.pop("forward", None)
        for module, mode in modes.items():
            module.training = mode
    return sum(tally.write(world or current()) for tally in tallies.values())


class _Tally:
    """The count, mean and squared deviations of a layer's inputs, in float64, pooled batch by batch."""

    def __init__(self, layer: BatchNorm) -> None:
        self.layer = layer
        assert layer.running_mean is not None
        self.count = 0
        self.mean = layer.running_mean.new_zeros(layer.num_features, dtype=torch.float64)
        self.squares = torch.zeros_like(self.mean)

    def add(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Pool with another set of values (Chan, Golub and LeVeque 1979)."""
        if count == 0:
            return
        total = self.count + count
        difference = mean.double() - self.mean
        self.squares += squares.double() + difference.square() * (self.count * count / total)
        self.mean += difference * (count / total)
        self.count = total

    def write(self, world: World) -> bool:
        """Pool over the workers and set the running statistics; False if no worker saw a value."""
        parts = world.all_gather(torch.cat([self.mean.new_tensor([self.count]), self.mean, self.squares]))
        pooled = _Tally(self.layer)
        for part in parts:
            half = (len(part) - 1) // 2
            pooled.add(int(part[0]), part[1 : 1 + half], part[1 + half :])
        if pooled.count == 0:
            return False
        assert self.layer.running_mean is not None and self.layer.running_var is not None
        self.layer.running_mean.copy_(pooled.mean)
        self.layer.running_var.copy_(pooled.squares / max(1, pooled.count - 1))
        return True


def _tracked(model: nn.Module) -> list[BatchNorm]:
    return [each for each in model.modules() if isinstance(each, BatchNorm) and each.running_mean is not None]


def _observe(layer: BatchNorm, tally: _Tally, x: Tensor) -> Tensor:
    """Normalise by the batch and note its statistics: what a layer does while it is recalibrated."""
    count = x.numel() // x.shape[1] if x.dim() > 1 else 0
    if count < 2:
        raise DataError("recalibrate", expected="at least 2 values per channel", got=count, do="drop the last batch")
    mean, unbiased = torch.zeros_like(layer.running_mean), torch.ones_like(layer.running_var)  # type: ignore[arg-type]
    # Momentum 1: the kernel hands out the batch's own statistics as the running ones.
    y = nn.functional.batch_norm(x, mean, unbiased, layer.weight, layer.bias, True, 1.0, layer.eps)
    tally.add(count, mean, unbiased * (count - 1))
    return y
