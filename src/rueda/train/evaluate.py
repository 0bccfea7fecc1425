"""Evaluation on all workers: every example counts exactly once, and the counts are whole numbers.

Each worker takes its share; a share that is padded to equal length carries weight 0 there. Correct answers are
summed as integers and losses as float64, so that N workers report what one would: accuracy to the last count.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train.layout import arrange, memory_format
from rueda.train.loaders import evaluation_loader
from rueda.train.normalisation import Recalibration
from rueda.train.update import autocast_for
from rueda.world import World
from rueda.world.device import float64_device

if TYPE_CHECKING:
    from rueda.train.training import Training


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model does on a data set."""

    loss: float
    correct: int
    num_examples: int
    has_metric: bool
    recalibrated: bool = False
    """whether the batch-norm statistics were recomputed before"""

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
    loss = torch.zeros((), dtype=torch.float64, device=float64_device(world.device))
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


class Evaluator:
    """Evaluates the model of a training on the task's test data, as often as it is asked to."""

    def __init__(self, training: Training) -> None:
        task, recipe, world = training.task, training.recipe, training.world
        self._training = training
        self._loader = evaluation_loader(task.load("test"), _evaluation_batch(recipe, world), world, training.dtype)
        self._recalibration = Recalibration(recipe, world, training.model, training.train_data)
        self._autocast = autocast_for(recipe, world)
        self._order = memory_format(training.model, recipe)

    def run(self) -> Evaluation:
        """Evaluate the model as it is now, on new batch-norm statistics where it needs them; all must call it."""
        training, state = self._training, self._training.state
        training.updater.synchronize_buffers()
        recalibrated = self._recalibration.wanted(state.step - state.recalibrated_at)
        if recalibrated:
            self._recalibration.run()
            state.recalibrated_at = state.step
        found = evaluate(
            training.task, training.model, self._loader, training.world, autocast=self._autocast, order=self._order
        )
        training.leave_out_time()
        return replace(found, recalibrated=recalibrated)


def _evaluation_batch(recipe: Recipe, world: World) -> int:
    # On a CPU a batch that stays in the cache is faster; a GPU wants to be filled.
    return min(recipe.batch, 256) if world.device.type == "cpu" else max(recipe.batch, 1024)
