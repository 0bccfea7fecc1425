"""Evaluation on all workers: every example counts exactly once, and the counts are whole numbers.

Each worker takes its share; a share that is padded to equal length carries weight 0 there. Correct answers are
summed as integers and losses as float64, so that N workers report what one would: accuracy to the last count.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from rueda.tasks import Task
from rueda.train.layout import arrange
from rueda.world import World


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model does on a data set."""

    loss: float
    correct: int
    num_examples: int
    has_metric: bool

    @property
    def accuracy(self) -> float | None:
        """Correct / all; None for a task without a metric."""
        return self.correct / self.num_examples if self.has_metric else None


@torch.inference_mode()
def evaluate(
    task: Task,
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    world: World,
    *,
    autocast: torch.autocast | None = None,
    order: torch.memory_format = torch.contiguous_format,
) -> Evaluation:
    """Evaluate a model on ``(inputs, targets, weights)`` batches, this worker's share; all workers must call it."""
    was_training = model.training
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=_sums_device(world))
    counts = torch.zeros(2, dtype=torch.int64, device=world.device)  # correct, all
    try:
        for inputs, targets, weights in batches:
            with autocast or nullcontext():
                outputs = model(arrange(inputs, order))
            losses = task.losses(outputs, targets)
            loss += (losses.to(loss) * weights.to(loss)).sum()
            counted = weights.to(torch.int64)
            counts[0] += (task.correct(outputs, targets) * counted).sum()
            counts[1] += counted.sum()
    finally:
        model.train(was_training)
    loss, counts = world.all_reduce(loss), world.all_reduce(counts)
    correct, num_examples = (int(count) for count in counts)
    return Evaluation(
        loss=float(loss) / num_examples,
        correct=correct,
        num_examples=num_examples,
        has_metric=task.metric is not None,
    )


def settle_buffers(model: nn.Module, world: World) -> None:
    """Make one model of all workers' again: the mean of their running statistics, rank 0's of all other buffers.

    Each worker normalises by its own batch and keeps its own running averages while it trains, so nothing is sent at
    each step. The averages are linear in what they have seen: the mean over the workers is the running average of
    the mean statistics, N times better than rank 0's alone. What else a model may note in its buffers cannot be
    averaged by a rule; there rank 0's counts.
    """
    if world.size == 1:
        return
    tracked = [
        buffer
        for module in model.modules()
        if isinstance(module, _NormBase)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if tracked:
        flat = world.all_reduce(torch.cat([buffer.flatten() for buffer in tracked]), "mean")
        for buffer, mean in zip(tracked, torch.split(flat, [buffer.numel() for buffer in tracked]), strict=True):
            buffer.copy_(mean.view_as(buffer))
    others = list(other_buffers(model).values())
    if others:
        # As bytes: not every backend sends every type, and one message does for all.
        raw = [buffer.detach().reshape(-1).contiguous().view(torch.uint8) for buffer in others]
        parts = torch.split(world.broadcast(torch.cat(raw)), [one.numel() for one in raw])
        for buffer, part in zip(others, parts, strict=True):
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


def other_buffers(model: nn.Module) -> dict[str, Tensor]:
    """List the buffers that are not those of a normalisation with running statistics."""
    norms = {id(buffer) for m in model.modules() if isinstance(m, _NormBase) for buffer in m.buffers(recurse=False)}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in norms}


def _sums_device(world: World) -> torch.device:
    # MPS has no float64: its sums are kept on the host.
    return torch.device("cpu") if world.device.type == "mps" else world.device
