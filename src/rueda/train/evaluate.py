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
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from rueda.data.nest import select
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.step import split_pair
from rueda.train import layout
from rueda.train.buffers import running_statistics, write_running_statistics
from rueda.train.interruption import EvaluationStopped, Interruption
from rueda.train.loaders import evaluation_loader, without_weights
from rueda.train.normalisation import Recalibration
from rueda.train.step_module import arranged
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
    batches: Iterable[Any],
    world: World,
    *,
    autocast: torch.autocast | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    memory: FittingBatch | None = None,
) -> Evaluation:
    """Evaluate a model on this worker's batches, and sum over all workers.

    Every worker must call this function.

    Args:
        task: provides the step or the loss, and the metric.
        model: the model; it is in evaluation mode meanwhile.
        batches: this worker's share of the examples: ``(inputs, targets, weights)`` or ``(batch, weights)``; examples
            with weight 0 do not count.
        world: the workers.
        autocast: the context of mixed precision.
        memory_format: the memory format of the inputs.
        memory: how many examples fit, if several evaluations shall share what was found.
    """
    memory = memory or FittingBatch()

    def one_part(*item: Any) -> Tensor:
        batch, counted = without_weights(item), to_float64(item[-1])
        with autocast or nullcontext():
            result = task.run_step(model, arranged(batch, memory_format))
        num_correct = counted.new_zeros(())
        if task.metric is not None:
            correct = task.correct(result.outputs, split_pair(batch, task.name)[1])
            num_correct = (to_float64(correct) * counted).sum()
        if task.step is None:
            return torch.stack([(to_float64(result.losses) * counted).sum(), num_correct, counted.sum(), counted.sum()])
        # Its losses need not be those of examples: padding was left out before, and a batch of nothing else weighs 0.
        weights = result.losses.new_ones(()) if result.weights is None else result.weights
        wide = to_float64(result.losses), to_float64(weights.expand_as(result.losses))
        kept = counted[:1].sum()
        return torch.stack([(wide[0] * wide[1]).sum() * kept, num_correct, counted.sum(), wide[1].sum() * kept])

    was_training = model.training
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=float64_device(world.device))
    try:
        for batch in batches:
            for found in memory.run(one_part, _real_examples(batch) if task.step is not None else batch):
                sums += found
    finally:
        model.train(was_training)
    loss, correct, num_examples, weight = world.all_reduce(sums).tolist()
    return Evaluation(
        loss=loss / (weight or 1.0),
        correct=round(correct),
        num_examples=round(num_examples),
        has_metric=task.metric is not None,
    )


def _real_examples(item: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an evaluation batch without the examples that only pad it, unless it has no others."""
    count = int((item[-1] > 0).sum())
    return item if count in (0, len(item[-1])) else tuple(part[:count] for part in item)


class FittingBatch:
    """The number of examples that one forward pass of an evaluation takes: halved whenever the GPU's memory is full."""

    def __init__(self) -> None:
        self.most: int | None = None
        """None until memory was full for the first time"""

    def run(self, function: Callable[..., Result], batch: tuple[Any, ...]) -> list[Result]:
        """Return the results of a function on parts of a batch: on the whole of it, if that fits."""
        total, done, results = len(batch[-1]), 0, list[Result]()
        while done < total:
            size = min(total - done, self.most or total)
            parts = batch if size == total else tuple(select(part, slice(done, done + size)) for part in batch)
            try:
                results.append(function(*parts))
                done += size
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                self.most = -(-size // 2)
                torch.get_device_module(batch[-1].device).empty_cache()
        return results


class Evaluator:
    """Evaluates the model of a training on the task's test data."""

    def __init__(self, training: Training) -> None:
        task, recipe, world = training.task, training.recipe, training.world
        self._training = training
        batch = _evaluation_batch(recipe, world)
        self._loader = evaluation_loader(task.load("test"), batch, world, training.dtype, task.collate)
        self._recalibration = Recalibration(task, recipe, world, training.model, training.train_data)
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
