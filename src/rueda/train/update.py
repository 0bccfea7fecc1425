"""One update: forward, loss, backward, all-reduce, optimizer step. This is the hot path.

Nothing here synchronises with the device: sums of losses and correct answers stay on it until they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rueda.errors import NonFiniteError, RecipeError
from rueda.nn.convert import BatchNorm
from rueda.nn.ghost_batch_norm import GhostBatchNorm
from rueda.optim import AdaScale
from rueda.optim.adapters import correct_momentum
from rueda.optim.meters import ExchangeMeter, Groups, PartsMeter, Reading
from rueda.optim.noise import add_noise, noise_weights
from rueda.optim.wrapper import raise_late
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.buffers import buffers_restored, synchronize_buffers
from rueda.train.divergence import MOST_SKIPPED, FiniteTest
from rueda.train.layout import memory_format, to_memory_format
from rueda.train.random_state import random_state, restore_random_state
from rueda.train.totals import Totals
from rueda.world import World, instruction_sets
from rueda.world.seeds import seed_worker

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_for(recipe: Recipe, world: World) -> torch.autocast | None:
    """Return the autocast context for the recipe's precision, or None."""
    dtype = _AUTOCAST.get(recipe.precision)
    if dtype is not None and world.device.type == "cpu":
        instruction_sets.protect(recipe.precision, speak=world.is_main)
    return None if dtype is None else torch.autocast(world.device.type, dtype)


class Updater:
    """Computes updates of a model from local batches.

    Args:
        task: provides the loss and the metric.
        recipe: precision, clipping and noise.
        world: the workers.
        model: the model, wrapped by :meth:`rueda.World.wrap`.
        optimizer: the optimizer of the model's parameters.
        groups: parameter groups whose noise scale is measured separately.
    """

    def __init__(
        self, task: Task, recipe: Recipe, world: World, model: nn.Module, optimizer: Optimizer, groups: Groups
    ) -> None:
        self._skips = recipe.on_divergence == "skip"
        self._scales = recipe.precision == "fp16"
        self.scaler = torch.amp.GradScaler(
            world.device.type, enabled=self._scales or self._skips, init_scale=2.0**16 if self._scales else 1.0
        )
        """fp16's loss scaling, which leaves out updates whose gradient is not finite; with ``skip`` its scale is 1"""
        self.micro_batch = recipe.batch
        """examples per forward pass; a larger local batch uses gradient accumulation"""
        self.sigma = 0.0
        """standard deviation of the multiplicative gradient noise"""
        self.reading: Reading | None
        """the gradient norms of the last update, if they were measured, without the loss scale"""
        self.source = "workers"
        """the parts whose gradients were compared"""
        self.remarks: list[str] = []
        """lines for the user about how the updates are computed"""
        self._task, self._recipe, self._world, self._model, self._optimizer = task, recipe, world, model, optimizer
        self._memory_format = memory_format(model, recipe)
        self._autocast: AbstractContextManager[Any] = autocast_for(recipe, world) or nullcontext()
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
        self._parts = PartsMeter(self._parameters, groups)
        self._finite = FiniteTest(world.unwrap(model), MOST_SKIPPED if self.scaler.is_enabled() else 0)
        self._exchange: ExchangeMeter | None = None
        self.restart()
        wanted = isinstance(optimizer, AdaScale) or recipe.noise_scale_every is not None
        if wanted and isinstance(model, DistributedDataParallel):
            self._exchange = ExchangeMeter(model, groups)

    def restart(self) -> None:
        """Forget the updates before; called at the start and when the training goes back to a checkpoint."""
        self.begin_totals()
        self.reading = None
        self._rate: float | None = None
        self._finite.forget()
        with suppress(NonFiniteError):
            raise_late(self._optimizer)

    def begin_totals(self) -> None:
        """Begin new sums of losses and correct answers."""
        self.totals = Totals(self._task, self._world.device, finite_only=self._skips)

    @property
    def is_skipping(self) -> bool:
        """Whether ``on_divergence = skip`` has left out the last update."""
        return self._skips and self._finite.num_skipped > 0

    def begin(self, step: int) -> None:
        """Seed this worker's random numbers for a step, before its batch is read from the data set."""
        seed_worker(self._recipe.seed, self._world.rank, step)

    def synchronize_buffers(self) -> None:
        """Make the model's buffers equal on all workers, before an evaluation or a checkpoint; all must call it."""
        synchronize_buffers(self._world.unwrap(self._model), self._world)

    def form_buckets(self, inputs: Tensor, targets: Tensor) -> None:
        """Compute gradients and drop them, as the first thing that a resumed training does on several workers.

        DistributedDataParallel reduces the gradients of its first backward pass in one bucket, and those of all others
        in buckets that it forms in the order in which gradients become ready. From three workers on, the place of a
        number in its bucket decides in which order the workers' numbers are added. So a resumed training leaves its
        first backward pass behind before it continues, and rounds as one that was never stopped.
        """
        if not isinstance(self._model, DistributedDataParallel):
            return
        if self._exchange is not None:
            self._exchange.active = False
        state = random_state()
        with self._restoring_gradients_and_buffers():
            self._accumulate_gradients(inputs, targets, None, self.micro_batch)
        restore_random_state(state)

    def update(self, inputs: Tensor, targets: Tensor, *, rate: float, step: int, measure: bool = False) -> None:
        """Make one update from this worker's examples.

        Args:
            inputs: [B, ...].
            targets: [B].
            rate: the learning rate.
            step: the number of updates so far, which seeds the gradient noise.
            measure: also compare the parts of the gradient; the result is ``reading``.

        Raises:
            NonFiniteError: the gradients are not finite; on a GPU, those of the update before.
        """
        self.reading = None
        try:
            self._gradients(inputs, targets, step, measure)
            self._step(rate, step)
        finally:  # also after an error, or the next update would add its gradients to these
            self._optimizer.zero_grad(set_to_none=True)

    def _gradients(self, inputs: Tensor, targets: Tensor, step: int, measure: bool) -> None:
        weights = self._noise(self._world.rank, targets.shape[0], step)
        if self._exchange is not None:
            adapts = isinstance(self._optimizer, AdaScale)
            self._exchange.active = adapts or measure
            self._accumulate_gradients(inputs, targets, weights, self.micro_batch)
            local_batch = targets.shape[0]
            self._use_reading(self._exchange.read(local_batch) if adapts else self._exchange.take(local_batch), measure)
        elif measure:
            self._accumulate_and_measure(inputs, targets, weights)
        else:
            self._accumulate_gradients(inputs, targets, weights, self.micro_batch)

    def _use_reading(self, reading: Reading | None, measure: bool) -> None:
        """Pass a reading to AdaScale, which needs it before the step; with ``measure`` keep it."""
        if reading is None:
            return
        if self.scaler.is_enabled():
            reading = reading._replace(norms=reading.norms / self.scaler.get_scale() ** 2)
        if isinstance(self._optimizer, AdaScale):
            self._optimizer.observe_sum(*reading.sums())
            reading = reading._replace(
                norms=reading.norms / self._world.size
            )  # the norms are equal on all workers, and their sum must count them once
        if measure:
            self.reading = reading

    def _accumulate_and_measure(self, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        """Accumulate gradients and compare those of the micro-batches, or of two halves of a single batch.

        Batch norm would normalise each half by its own statistics, which changes the training. Then the gradient is
        computed from the whole batch as usual, and once more from the halves for the measurement only, which about
        doubles the time of this update. (Ghost batch norm is not affected if each ghost batch lies within one half.)
        """
        total = targets.shape[0]
        meter = self._parts
        if total > self.micro_batch:
            self.source = "micro-batches"
            self._accumulate_gradients(inputs, targets, weights, self.micro_batch, meter)
        elif total > 1:
            self.source = "halves"
            if self._halves_are_equivalent(total):
                self._accumulate_gradients(inputs, targets, weights, -(-total // 2), meter)
            else:
                self._accumulate_gradients(inputs, targets, weights, total)
                if total < 4:
                    raise RecipeError(
                        f"the noise scale of a model with batch norm is measured from halves of the batch, and {total} "
                        "examples are too few to normalise; set batch to 4 or more"
                    )
                with self._restoring_gradients_and_buffers():
                    self._accumulate_gradients(inputs, targets, weights, -(-total // 2), meter)
                    reading = meter.finish()
                self._use_reading(reading, True)
                return
        else:
            self._accumulate_gradients(inputs, targets, weights, total)
            return
        self._use_reading(meter.finish(), True)

    def _halves_are_equivalent(self, total: int) -> bool:
        """Return whether two halves of a batch give the same gradient as the whole batch."""
        return all(
            not layer.training or (isinstance(layer, GhostBatchNorm) and total % (2 * layer.ghost_batch) == 0)
            for layer in self._norms
        )

    @contextmanager
    def _restoring_gradients_and_buffers(self) -> Iterator[None]:
        """Restore the gradients, the buffers and the totals at the end of the block."""
        gradients = [parameter.grad for parameter in self._parameters]
        totals = self.totals
        self.begin_totals()
        for parameter in self._parameters:
            parameter.grad = None
        try:
            with buffers_restored(self._model.buffers()):
                yield
        finally:
            self.totals = totals
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient

    def _accumulate_gradients(
        self,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        micro_batch: int,
        meter: PartsMeter | None = None,
    ) -> None:
        """Accumulate the gradients of micro-batches; a meter reads each of them."""
        total = targets.shape[0]
        starts = range(0, total, micro_batch)
        for start in starts:
            part = slice(start, start + micro_batch)
            with self._skip_all_reduce_unless(is_last=start == starts[-1]):
                with self._autocast:
                    outputs = self._model(to_memory_format(inputs[part], self._memory_format))
                    losses = self._task.losses(outputs, targets[part])
                weighted = losses if weights is None else losses * weights[part]
                self.scaler.scale(weighted.sum() / total).backward()  # type: ignore[no-untyped-call]
            self.totals.add(Losses(losses, None, outputs), (inputs[part], targets[part]), losses.shape[0])
            if meter is not None:
                meter.take(losses.shape[0])

    def _noise(self, rank: int, num_examples: int, step: int) -> Tensor | None:
        if self.sigma == 0:
            return None
        seed, device = self._recipe.seed, self._world.device
        return noise_weights(num_examples, self.sigma, seed=seed, step=step, rank=rank, device=device)

    def _skip_all_reduce_unless(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context without gradient all-reduce, except for the last micro-batch."""
        if is_last or not isinstance(self._model, DistributedDataParallel):
            return nullcontext()
        return self._model.no_sync()

    def _step(self, rate: float, step: int) -> None:
        recipe, optimizer = self._recipe, self._optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate
        if recipe.momentum_correction and self._rate is not None:
            correct_momentum(optimizer, self._rate, rate)
        self._rate = rate
        if recipe.clip is not None or recipe.additive_noise > 0:
            self.scaler.unscale_(optimizer)
        if recipe.additive_noise > 0:
            add_noise(self._parameters, step=step, eta=recipe.additive_noise, seed=recipe.seed)
        norm = None if recipe.clip is None else nn.utils.clip_grad_norm_(self._parameters, recipe.clip)
        before = self._finite.num_skipped
        is_finite = self._finite.check(norm)
        if self._skips and not is_finite and before == 0:
            self.remarks.append(f"update {step + 1}: the gradient is not finite; the update was left out")
        elif self._skips and is_finite and before > 1:
            self.remarks.append(f"update {step + 1}: the gradient is finite again; {before} updates were left out")
        self.scaler.step(optimizer)
        self.scaler.update(None if self._scales else 1.0)
