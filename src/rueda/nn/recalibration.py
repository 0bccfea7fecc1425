"""Recompute batch-norm statistics exactly after training, and decide when that is needed.

Each update multiplies the weight of a running average's initial value (mean 0, variance 1) by 1 - momentum. With large
batches there are few updates: after an epoch of 16 steps at momentum 0.1 the initial value still has a weight of 0.9^16
= 18.5 %, so a network that predicts well in training mode predicts badly in evaluation mode.
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
from rueda.world.device import float64_device, to_float64


def stale(momentum: float | None, num_updates: int) -> float:
    """Return the weight of the initial value in a running average: (1 - momentum)^num_updates.

    >>> round(stale(0.1, 16), 3), round(stale(0.1, 44), 3)
    (0.185, 0.01)
    >>> stale(None, 16)  # a cumulative average drops it with the first update
    0.0
    """
    if momentum is None:
        return 0.0 if num_updates > 0 else 1.0
    return float((1.0 - momentum) ** num_updates)


def needs_recalibration(
    model: nn.Module, num_updates: int, *, local_batch: int | None = None, tolerance: float = 0.01
) -> bool:
    """Return whether the initial value has a weight above `tolerance` in any layer's running averages.

    Args:
        model: the model in training.
        num_updates: number of steps since the averages were last reset or recalibrated.
        local_batch: examples per worker and step; if given, each ghost of a ghost batch norm counts as an update.
        tolerance: the weight that may remain; 0.01 needs 44 updates at momentum 0.1.

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
    sharers: int = 1,
) -> int:
    """Replace every running mean and variance by the exact ones over all the given data.

    Each batch passes through the model once. Batch-norm layers normalise by the batch (ghost and synchronised ones by
    the whole local batch) and record its statistics; all other layers run in evaluation mode, so dropout is off. The
    statistics of all batches and workers are pooled exactly, weighted by their counts: the mean and the unbiased
    variance of all values. Workers may have different numbers of batches.

    The inputs of a layer depend on how the layers before it normalise, which is by batch statistics here. So use
    batches at least as large as in training. Parameters, gradients, modes and `num_batches_tracked` do not change, and
    after an error the old statistics remain.

    Args:
        model: the model, which may be wrapped in DistributedDataParallel.
        batches: each is a tensor of inputs, or a tuple or list whose first item is that tensor.
        forward: runs the model on a batch, for models with several inputs; called with (model, batch).
        world: the workers to pool over; by default `rueda.world.current()`.
        sharers: how many workers, neighbours in rank order, pass the same batches, whose values count once.

    Returns:
        The number of recalibrated layers.

    >>> model = nn.Sequential(nn.BatchNorm1d(1))
    >>> recalibrate(model, [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0], [5.0]])])
    1
    >>> model[0].running_mean, model[0].running_var
    (tensor([3.]), tensor([2.5000]))
    """
    if isinstance(model, DistributedDataParallel):
        model = model.module
    moments = {layer: _Moments(layer) for layer in _tracked(model)}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for layer, moment in moments.items():
            layer.forward = functools.partial(_observe, layer, moment)  # type: ignore[method-assign]
        with torch.no_grad():
            for batch in batches:
                if forward is not None:
                    forward(model, batch)
                else:
                    model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for layer in moments:
            layer.__dict__.pop("forward", None)
        for module, mode in modes.items():
            module.training = mode
    return sum(moment.write(world or current(), sharers) for moment in moments.values())


class _Moments:
    """The count, mean and sum of squared deviations of a layer's inputs, in float64, accumulated batch by batch."""

    def __init__(self, layer: BatchNorm) -> None:
        self.layer = layer
        assert layer.running_mean is not None
        self.count = 0
        device = float64_device(layer.running_mean.device)
        self.mean = torch.zeros(layer.num_features, dtype=torch.float64, device=device)
        self.squares = torch.zeros_like(self.mean)

    def add(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Add another set of values, given by its moments (Chan, Golub and LeVeque 1979)."""
        if count == 0:
            return
        total = self.count + count
        difference = to_float64(mean) - self.mean
        self.squares += to_float64(squares) + difference.square() * (self.count * count / total)
        self.mean += difference * (count / total)
        self.count = total

    def write(self, world: World, sharers: int) -> bool:
        """Pool over the workers and set the running statistics; return False if no worker had a value."""
        parts = world.all_gather(torch.cat([self.mean.new_tensor([self.count]), self.mean, self.squares]))
        pooled = _Moments(self.layer)
        for part in parts[::sharers]:
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


def _observe(layer: BatchNorm, moment: _Moments, x: Tensor) -> Tensor:
    """Normalise by the batch and record its statistics; replaces a layer's forward during recalibration."""
    count = x.numel() // x.shape[1] if x.dim() > 1 else 0
    if count < 2:
        raise DataError("recalibrate", expected="at least 2 values per channel", got=count, do="drop the last batch")
    mean, unbiased = torch.zeros_like(layer.running_mean), torch.ones_like(layer.running_var)  # type: ignore[arg-type]
    # With momentum 1 the kernel writes the statistics of this batch into the running ones.
    y = nn.functional.batch_norm(x, mean, unbiased, layer.weight, layer.bias, True, 1.0, layer.eps)
    moment.add(count, mean, unbiased * (count - 1))
    return y
