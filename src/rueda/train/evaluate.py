"""Evaluation on all workers, in which every example counts exactly once.

Each worker evaluates its shard. Some shards are padded with one example, so that all shards have the same length. The
padding is removed before the model sees the batch. A batch with nothing but padding is computed as it is, so that all
workers make the same number of forward passes, but it does not count. Losses and metrics are summed in float64 over all
workers (:mod:`rueda.train.totals`), so N workers report what one does. (The exception is a step that gathers: in an
evaluation every worker compares the examples of its own batch only, and which ones these are depends on N.)

Where a task has validation data, the best checkpoint, targets and choices depend on them alone; the test sets are
evaluated for the record.

A GPU raises an error when its memory is full. The batch at which this happens is then evaluated in halves, quarters and
so on, on this worker alone: which examples are its share does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rueda.data.nest import check_divisible, num_examples, select
from rueda.errors import DataError, TaskError
from rueda.records import Recipe
from rueda.records.metric import MetricInfo
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train import layout
from rueda.train.buffers import running_statistics, write_running_statistics
from rueda.train.interruption import EvaluationStopped, Interruption
from rueda.train.loaders import evaluation_loader, without_weights
from rueda.train.normalisation import Recalibration
from rueda.train.step_module import arranged
from rueda.train.totals import Figures, Totals
from rueda.train.update import autocast_for
from rueda.world import World
from rueda.world.device import is_gpu

if TYPE_CHECKING:
    from rueda.train.training import Training


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The loss and the metrics of a model on the validation data and on each test set."""

    sets: dict[str, Figures]
    """``validation``, where there are such data, ``test``, the primary test set, and further ones by name"""
    recalibrated: bool = False
    """whether the batch-norm statistics were recomputed before the evaluation"""

    @property
    def test(self) -> Figures:
        """The figures of the primary test set."""
        return self.sets["test"]

    @property
    def deciding(self) -> Figures:
        """The figures by which checkpoints, targets and choices are decided: validation data, or else test data."""
        return self.sets["validation" if "validation" in self.sets else "test"]

    @property
    def metric(self) -> MetricInfo:
        """The primary metric."""
        return self.deciding.metrics[0]

    def value(self, name: str | None = None) -> float | None:
        """Return the deciding value of a metric, or of the primary one."""
        return self.deciding.values.get(name or self.metric.name)


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
    losses: Callable[[nn.Module, Any, int], Iterable[tuple[Losses, Any, int]]] | None = None,
) -> Figures:
    """Evaluate a model on this worker's batches, and sum over all workers, which must all call this function.

    Args:
        task: provides the loss or the step, and the metrics.
        model: the model; it is in evaluation mode meanwhile.
        batches: this worker's share of the examples: ``(inputs, targets, weights)`` or ``(batch, weights)``. Examples
            with weight 0 do not count; they are the last ones of a batch.
        world: the workers.
        autocast: the context of mixed precision.
        memory_format: the memory format of the inputs.
        memory: how many examples fit, if several evaluations shall share what was found.
        losses: computes the losses of a batch by parts, if not the task on the model; only the workers of a pipeline
            that have the last stage get any.

    Raises:
        TaskError: the weights of all examples are 0, so that there is no mean loss.
    """
    memory = memory or FittingBatch()
    totals = Totals(task, world.device, evaluates=True)

    def one_part(batch: Any, count: int, counted: bool) -> None:
        with autocast or nullcontext():
            if losses is None:
                result = task.run_step(model, arranged(batch, memory_format))
            else:
                for result, part, number in losses(model, arranged(batch, memory_format), count):
                    totals.add(result, part, number, counted=counted)
                return
        totals.add(result, batch, count, counted=counted)

    was_training = model.training
    model.eval()
    try:
        for item in batches:
            memory.run(one_part, *_real_examples(without_weights(item), item[-1]))
    finally:
        model.train(was_training)
    found = totals.over(world)
    if found.num_examples and not found.weight:  # the sums of all workers: every worker raises it
        expected, do = f"a sum above 0 over {found.num_examples} examples", "return weights that are not all 0"
        raise TaskError("the weights of an evaluation", expected=expected, got=0, do=do)
    return found


def _real_examples(batch: Any, weights: Tensor) -> tuple[Any, int, bool]:
    """Return a batch without its padding, the number of its examples, and whether they count."""
    total = len(weights)
    count = total if weights.device.type != "cpu" and bool((weights > 0).all()) else int((weights > 0).sum())
    if count == 0:  # the same number of forward passes as the other workers make, in case these communicate
        return batch, total, False
    return (batch if count == total else select(batch, slice(0, count))), count, True


class FittingBatch:
    """The number of examples that one forward pass of an evaluation takes: halved whenever the GPU's memory is full."""

    def __init__(self) -> None:
        self.most: int | None = None
        """None until memory was full for the first time"""

    def run(self, function: Callable[[Any, int, bool], None], batch: Any, total: int, counted: bool = True) -> None:
        """Call a function with parts of a batch, the number of examples in each, and whether they count.

        A batch that fits is one part; so is one whose tensors do not all count examples, which cannot be divided.
        """
        done = 0
        while done < total:
            size = min(total - done, self.most or total)
            part = batch if size == total else select(batch, slice(done, done + size))
            try:
                function(part, size, counted)
                done += size
            except torch.OutOfMemoryError:
                if size == 1 or not _is_divisible(batch, total):
                    raise
                self.most = -(-size // 2)
                torch.get_device_module().empty_cache()


def _is_divisible(batch: Any, total: int) -> bool:
    try:
        check_divisible(batch)
    except DataError:
        return False
    return num_examples(batch) == total


class Evaluator:
    """Evaluates the model of a training on the task's validation and test data.

    Args:
        training: the training.
        deciding_only: evaluate only the data on which choices are made: validation data, or else the primary test set.
    """

    def __init__(self, training: Training, *, deciding_only: bool = False) -> None:
        task, recipe, world = training.task, training.recipe, training.world
        self._training = training
        names = (*([] if task.validation is None else ["validation"]), *task.test_names)
        batch = _evaluation_batch(recipe, world)
        self._loaders = {
            name: evaluation_loader(task.load(name), batch, training.data_world, training.dtype, task.collate)
            for name in (names[:1] if deciding_only else names)
        }
        self._recalibration = Recalibration(
            task, recipe, world, training.model, training.train_data, place=training.data_world,
            compute=training.updater.compute,
        )  # fmt: skip
        self._autocast = autocast_for(recipe, world)
        self._memory = FittingBatch()
        self._memory_format = layout.memory_format(training.model, recipe)

    def run(self, interruption: Interruption | None = None) -> Evaluation:
        """Evaluate the model, after recomputing its batch-norm statistics where needed; all workers must call it.

        With ``ema_decay``, the model has the average of its weights meanwhile; where workers make updates of their own,
        the mean of their parameters.

        Raises:
            EvaluationStopped: a signal stopped it; model and state are as they were before.
        """
        average = self._training.average
        with nullcontext() if average is None else average.applied(), self._training.updater.mean_parameters():
            return self._run(interruption)

    def _run(self, interruption: Interruption | None) -> Evaluation:
        training, state = self._training, self._training.state
        statistics, recalibrated_at = running_statistics(training.model), state.recalibrated_at
        training.updater.synchronize_buffers()
        recalibrated = self._recalibration.wanted(state.step - state.recalibrated_at)
        if recalibrated:
            with training.updater.gathered():
                self._recalibration.run()
            state.recalibrated_at = state.step
        try:
            found = {name: self._evaluate(loader, interruption) for name, loader in self._loaders.items()}
        except EvaluationStopped:
            state.recalibrated_at = recalibrated_at
            if statistics is not None:
                write_running_statistics(training.model, statistics)
            raise
        training.leave_out_time()
        return Evaluation(sets=found, recalibrated=recalibrated)

    def _evaluate(self, loader: Iterable[Any], interruption: Interruption | None) -> Figures:
        training = self._training
        return evaluate(
            training.task, training.model, loader if interruption is None else interruption.until_stopped(loader),
            training.world, autocast=self._autocast, memory_format=self._memory_format, memory=self._memory,
            losses=training.updater.losses if training.mesh.divides_model else None,
        )  # fmt: skip


def _evaluation_batch(recipe: Recipe, world: World) -> int:
    if recipe.evaluation_batch is not None:
        return recipe.evaluation_batch
    # On a CPU a batch that fits in the cache is fastest. A GPU needs large batches; without a backward pass four times
    # the training's batch takes no more memory.
    return max(recipe.batch, min(4 * recipe.batch, 1024)) if is_gpu(world.device) else min(recipe.batch, 256)
