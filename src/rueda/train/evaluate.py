"""Evaluation on all workers, in which every example counts exactly once.

Each worker evaluates its shard; examples that only make all shards equally long have weight 0. Correct answers are
summed as integers and losses in float64, so N workers report the same accuracy as one.

A GPU raises an error when its memory is full. The batch at which this happens is then evaluated in halves, quarters and
so on, on this worker alone: which examples are its share does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train import layout
from rueda.train.buffers import running_statistics, write_running_statistics
from rueda.train.interruption import EvaluationStopped, Interruption
from rueda.train.loaders import evaluation_loader
from rueda.train.normalisation import Recalibration
from rueda.train.update import autocast_for
from rueda.world import World
from rueda.world.device import float64_device, is_gpu, to_float64

if TYPE_CHECKING:
    from rueda.train.training import Training


Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The loss and the accuracy of a model on a data set."""

    loss: float
    correct: int
    num_examples: int
    has_metric: bool
    recalibrated: bool = False
    """whether the batch-norm statistics were recomputed before the evaluation"""

    @property
    def accuracy(self) -> float | None:
        """The fraction of correct answers; None for a task without a metric."""
        return self.correct / self.num_examples if self.has_metric else None


@torch.inference_mode()
def evaluate(
    task: Task,
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    world: World,
    *,
    autocast: torch.autocast | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    memory: FittingBatch | None = None,
) -> Evaluation:
    """Evaluate a model on this worker's batches ``(inputs, targets, weights)``, and sum over all workers.

    Every worker must call this function.

    Args:
        task: provides the loss and the metric.
        model: the model; it is in evaluation mode meanwhile.
        batches: this worker's share of the examples; those with weight 0 do not count.
        world: the workers.
        autocast: the context of mixed precision.
        memory_format: the memory format of the inputs.
        memory: how many examples fit, if several evaluations shall share what was found.
    """
    memory = memory or FittingBatch()

    def one_part(inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        with autocast or nullcontext():
            outputs = model(layout.to_memory_format(inputs, memory_format))
        losses, counted = task.losses(outputs, targets), weights.to(torch.int64)
        num_correct = (task.correct(outputs, targets) * counted).sum()
        return (to_float64(losses) * to_float64(weights)).sum(), torch.stack([num_correct, counted.sum()])

    was_training = model.training
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=float64_device(world.device))
    counts = torch.zeros(2, dtype=torch.int64, device=world.device)  # correct answers, all examples
    try:
        for batch in batches:
            for one_loss, one_counts in memory.run(one_part, batch):
                loss += one_loss
                counts += one_counts
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


class FittingBatch:
    """The number of examples that one forward pass of an evaluation takes: halved whenever the GPU's memory is full."""

    def __init__(self) -> None:
        self.most: int | None = None
        """None until memory was full for the first time"""

    def run(
        self, function: Callable[[Tensor, Tensor, Tensor], Result], batch: tuple[Tensor, Tensor, Tensor]
    ) -> list[Result]:
        """Return the results of a function on parts of a batch: on the whole of it, if that fits."""
        total, done, results = len(batch[1]), 0, list[Result]()
        while done < total:
            size = min(total - done, self.most or total)
            inputs, targets, weights = (part[done : done + size] for part in batch)
            try:
                results.append(function(inputs, targets, weights))
                done += size
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                self.most = -(-size // 2)
                torch.get_device_module(targets.device).empty_cache()
        return results


class Evaluator:
    """Evaluates the model of a training on the task's test data."""

    def __init__(self, training: Training) -> None:
        task, recipe, world = training.task, training.recipe, training.world
        self._training = training
        self._loader = evaluation_loader(task.load("test"), _evaluation_batch(recipe, world), world, training.dtype)
        self._recalibration = Recalibration(recipe, world, training.model, training.train_data)
        self._autocast = autocast_for(recipe, world)
        self._memory = FittingBatch()
        self._memory_format = layout.memory_format(training.model, recipe)

    def run(self, interruption: Interruption | None = None) -> Evaluation:
        """Evaluate the model, after recomputing its batch-norm statistics where needed; all workers must call it.

        Raises:
            EvaluationStopped: a signal stopped it; model and state are as they were before.
        """
        training, state = self._training, self._training.state
        statistics, recalibrated_at = running_statistics(training.model), state.recalibrated_at
        training.updater.synchronize_buffers()
        recalibrated = self._recalibration.wanted(state.step - state.recalibrated_at)
        if recalibrated:
            self._recalibration.run()
            state.recalibrated_at = state.step
        try:
            found = evaluate(
                training.task,
                training.model,
                self._loader if interruption is None else interruption.until_stopped(self._loader),
                training.world,
                autocast=self._autocast,
                memory_format=self._memory_format,
                memory=self._memory,
            )
        except EvaluationStopped:
            state.recalibrated_at = recalibrated_at
            if statistics is not None:
                write_running_statistics(training.model, statistics)
            raise
        training.leave_out_time()
        return replace(found, recalibrated=recalibrated)


def _evaluation_batch(recipe: Recipe, world: World) -> int:
    if recipe.evaluation_batch is not None:
        return recipe.evaluation_batch
    # On a CPU a batch that fits in the cache is fastest. A GPU needs large batches; without a backward pass four times
    # the training's batch takes no more memory.
    return max(recipe.batch, min(4 * recipe.batch, 1024)) if is_gpu(world.device) else min(recipe.batch, 256)
