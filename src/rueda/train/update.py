"""One update: forward, loss, backward, average over the workers, optimizer. The hot path.

Nothing here waits for the device: sums of loss and correct answers stay where they are computed until somebody
wants to show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rueda.errors import RecipeError
from rueda.nn.convert import BatchNorm
from rueda.nn.ghost_batch_norm import GhostBatchNorm
from rueda.optim import AdaScale
from rueda.optim.adapters import correct_momentum
from rueda.optim.meters import ExchangeMeter, Groups, PartsMeter, Reading
from rueda.optim.noise import add_noise, noise_weights
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train.buffers import synchronize_buffers
from rueda.train.layout import arrange, memory_format
from rueda.world import World, instruction_sets
from rueda.world.device import float64_device
from rueda.world.seeds import seed_worker

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_for(recipe: Recipe, world: World) -> torch.autocast | None:
    """Give the autocast that the recipe's precision asks for, if any."""
    dtype = _AUTOCAST.get(recipe.precision)
    if dtype is not None and world.device.type == "cpu":
        instruction_sets.protect(recipe.precision, speak=world.is_main)
    return None if dtype is None else torch.autocast(world.device.type, dtype)


class Totals:
    """Sums over this worker's examples since the last reset, kept on the device."""

    def __init__(self, device: torch.device) -> None:
        # MPS has no float64.
        self.loss = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.num_examples = 0

    def add(self, losses: Tensor, correct: Tensor) -> None:
        """Add the examples of a batch: losses [B], correct [B]."""
        self.loss += losses.detach().sum()
        self.correct += correct.sum()
        self.num_examples += losses.shape[0]

    def means(self) -> tuple[float, float]:
        """Mean loss and share of correct answers on this worker; waits for the device."""
        count = max(1, self.num_examples)
        return float(self.loss) / count, int(self.correct) / count

    def sums_over(self, world: World) -> list[float]:
        """Sum loss, correct answers and examples over all workers; all must call it."""
        sums = torch.stack(
            [self.loss.cpu().double(), self.correct.cpu().double(), torch.tensor(float(self.num_examples))]
        )
        total: list[float] = world.all_reduce(sums.to(torch.float64).to(float64_device(world.device))).tolist()
        return total


class Updater:
    """Makes updates of a model from local batches.

    Args:
        task: gives the loss and what is right.
        recipe: precision, clipping and noise.
        world: the workers.
        model: wrapped by :meth:`rueda.World.wrap`.
        optimizer: of the model's parameters.
        groups: parameters whose noise scale is measured apart.
    """

    def __init__(
        self, task: Task, recipe: Recipe, world: World, model: nn.Module, optimizer: Optimizer, groups: Groups
    ) -> None:
        self.totals = Totals(world.device)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=recipe.precision == "fp16")
        self.micro_batch = recipe.batch
        """examples taken through the network at once; a larger local batch is accumulated"""
        self.sigma = 0.0
        """of the multiplicative gradient noise"""
        self.reading: Reading | None = None
        """the norms of the last update's gradients, if they were asked for, without the scaler's scale"""
        self.source = "workers"
        """whose gradients were compared"""
        self.remarks: list[str] = []
        """what the user should know of how the updates are made"""
        self._task, self._recipe, self._world, self._model, self._optimizer = task, recipe, world, model, optimizer
        self._order = memory_format(model, recipe)
        self._autocast: AbstractContextManager[Any] = autocast_for(recipe, world) or nullcontext()
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
        self._parts = PartsMeter(self._parameters, groups)
        self._rate: float | None = None
        self._exchange: ExchangeMeter | None = None
        wanted = isinstance(optimizer, AdaScale) or recipe.noise_scale_every is not None
        if wanted and isinstance(model, DistributedDataParallel):
            self._exchange = ExchangeMeter(model, groups)

    def begin(self, step: int) -> None:
        """Begin a step, before its batch is read: a data set may draw random numbers."""
        seed_worker(self._recipe.seed, self._world.rank, step)

    def synchronize_buffers(self) -> None:
        """Make the model's buffers equal on all workers, for an evaluation or a checkpoint; all must call it."""
        synchronize_buffers(self._world.unwrap(self._model), self._world)

    def update(self, inputs: Tensor, targets: Tensor, *, rate: float, step: int, measure: bool = False) -> None:
        """Make one update from this worker's examples, inputs [B, ...] and targets [B], at a rate.

        With ``measure`` the parts of the gradient are compared on the way: see ``reading``.
        """
        self.reading = None
        self._gradients(inputs, targets, step, measure)
        self._step(rate, step)

    def _gradients(self, inputs: Tensor, targets: Tensor, step: int, measure: bool) -> None:
        weights = self._noise(self._world.rank, targets.shape[0], step)
        if self._exchange is not None:
            adapts = isinstance(self._optimizer, AdaScale)
            self._exchange.active = adapts or measure
            self._passes(inputs, targets, weights, self.micro_batch)
            local_batch = targets.shape[0]
            self._take(self._exchange.read(local_batch) if adapts else self._exchange.take(local_batch), measure)
        elif measure:
            self._measured_passes(inputs, targets, weights)
        else:
            self._passes(inputs, targets, weights, self.micro_batch)

    def _take(self, reading: Reading | None, measure: bool) -> None:
        """Tell AdaScale, which must know before the step, and keep the reading for whoever asked for it."""
        if reading is None:
            return
        if self.scaler.is_enabled():
            reading = reading._replace(norms=reading.norms / self.scaler.get_scale() ** 2)
        if isinstance(self._optimizer, AdaScale):
            self._optimizer.observe_sum(*reading.sums())
            reading = reading._replace(norms=reading.norms / self._world.size)  # it is every worker's: a share each
        if measure:
            self.reading = reading

    def _measured_passes(self, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        """Compare the micro-batches of one worker; a batch that is taken at once is taken in two halves instead.

        Batch norm would normalise each half by itself, which is another training. There the batch is taken as ever,
        and the halves once more, beside the training: such an update costs about twice its time. (With ghosts that
        lie within the halves nothing changes, and nothing is done twice.)
        """
        total = targets.shape[0]
        meter = self._parts
        if total > self.micro_batch:
            self.source = "micro-batches"
            self._passes(inputs, targets, weights, self.micro_batch, meter)
        elif total > 1:
            self.source = "halves"
            if self._splits(total):
                self._passes(inputs, targets, weights, -(-total // 2), meter)
            else:
                self._passes(inputs, targets, weights, total)
                with self._aside(total):
                    self._passes(inputs, targets, weights, -(-total // 2), meter)
                    reading = meter.finish()
                self._take(reading, True)
                return
        else:
            self._passes(inputs, targets, weights, total)
            return
        self._take(meter.finish(), True)

    def _splits(self, total: int) -> bool:
        """Say whether two halves give what the whole batch gives."""
        return all(
            not layer.training or (isinstance(layer, GhostBatchNorm) and total % (2 * layer.ghost_batch) == 0)
            for layer in self._norms
        )

    @contextmanager
    def _aside(self, total: int) -> Iterator[None]:
        """Put the gradients, the running statistics and the sums aside, and bring them back."""
        if total < 4:
            raise RecipeError(
                f"the noise scale of a model with batch norm is measured from halves of the batch, and {total} "
                "examples are too few to normalise; set batch to 4 or more"
            )
        gradients = [parameter.grad for parameter in self._parameters]
        buffers = [buffer for layer in self._norms for buffer in layer._buffers.values() if buffer is not None]
        kept = [buffer.clone() for buffer in buffers]
        totals, self.totals = self.totals, Totals(self._world.device)
        for parameter in self._parameters:
            parameter.grad = None
        try:
            yield
        finally:
            self.totals = totals
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            for buffer, before in zip(buffers, kept, strict=True):
                buffer.copy_(before)

    def _passes(
        self,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        micro_batch: int,
        meter: PartsMeter | None = None,
    ) -> None:
        """Add up the gradients of micro-batches; a meter sees each."""
        total = targets.shape[0]
        starts = range(0, total, micro_batch)
        for start in starts:
            part = slice(start, start + micro_batch)
            with self._without_average(is_last=start == starts[-1]):
                with self._autocast:
                    outputs = self._model(arrange(inputs[part], self._order))
                    losses = self._task.losses(outputs, targets[part])
                weighted = losses if weights is None else losses * weights[part]
                self.scaler.scale(weighted.sum() / total).backward()  # type: ignore[no-untyped-call]
            self.totals.add(losses, self._task.correct(outputs, targets[part]))
            if meter is not None:
                meter.take(losses.shape[0])

    def _noise(self, rank: int, num_examples: int, step: int) -> Tensor | None:
        if self.sigma == 0:
            return None
        seed, device = self._recipe.seed, self._world.device
        return noise_weights(num_examples, self.sigma, seed=seed, step=step, rank=rank, device=device)

    def _without_average(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Accumulated gradients travel once, with the last micro-batch."""
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
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, recipe.clip)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
