"""One update: forward, loss, backward, average over the workers, optimizer. The hot path.

Nothing here waits for the device: sums of loss and correct answers stay where they are computed until somebody
wants to show them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rueda.optim import AdaScale
from rueda.optim.adapters import correct_momentum
from rueda.optim.noise import add_noise, noise_weights
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train.layout import arrange, memory_format
from rueda.world import World

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_for(recipe: Recipe, world: World) -> torch.autocast | None:
    """Give the autocast that the recipe's precision asks for, if any."""
    dtype = _AUTOCAST.get(recipe.precision)
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
        total: list[float] = world.all_reduce(sums.to(torch.float64).to(_sums_device(world))).tolist()
        return total


def _sums_device(world: World) -> torch.device:
    return world.device if world.device.type == "cuda" else torch.device("cpu")


class Updater:
    """Makes updates of a model from local batches.

    Args:
        task: gives the loss and what is right.
        recipe: precision, clipping and noise.
        world: the workers.
        model: wrapped by :meth:`rueda.World.wrap`.
        optimizer: of the model's parameters.
    """

    def __init__(
        self, task: Task, recipe: Recipe, world: World, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.totals = Totals(world.device)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=recipe.precision == "fp16")
        self.micro_batch = recipe.batch
        """examples taken through the network at once; a larger local batch is accumulated"""
        self.sigma = 0.0
        """of the multiplicative gradient noise"""
        self._task, self._recipe, self._world, self._model, self._optimizer = task, recipe, world, model, optimizer
        self._order = memory_format(model, recipe)
        self._autocast: AbstractContextManager[Any] = autocast_for(recipe, world) or nullcontext()
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._rate: float | None = None
        if isinstance(optimizer, AdaScale) and isinstance(model, DistributedDataParallel):
            optimizer.watch(model)

    def update(self, inputs: Tensor, targets: Tensor, *, rate: float, step: int) -> None:
        """Make one update from this worker's examples, inputs [B, ...] and targets [B], at a rate."""
        self._gradients(inputs, targets, step)
        self._step(rate, step)

    def _gradients(self, inputs: Tensor, targets: Tensor, step: int) -> None:
        total = targets.shape[0]
        weights = self._noise(total, step)
        starts = range(0, total, self.micro_batch)
        for start in starts:
            part = slice(start, start + self.micro_batch)
            with self._without_average(is_last=start == starts[-1]):
                with self._autocast:
                    outputs = self._model(arrange(inputs[part], self._order))
                    losses = self._task.losses(outputs, targets[part])
                weighted = losses if weights is None else losses * weights[part]
                self.scaler.scale(weighted.sum() / total).backward()  # type: ignore[no-untyped-call]
            self.totals.add(losses, self._task.correct(outputs, targets[part]))

    def _noise(self, num_examples: int, step: int) -> Tensor | None:
        if self.sigma == 0:
            return None
        seed, rank, device = self._recipe.seed, self._world.rank, self._world.device
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
