"""Rueda's large-batch techniques in Lightning: the callback :class:`LargeBatch`.

::

    recipe = rueda.Recipe(scaling="sqrt", warmup_epochs=5, schedule="cosine", ghost_batch=32, noise_scale_every=10)
    trainer = lightning.Trainer(max_epochs=90, devices=8, callbacks=[LargeBatch(recipe)])

The optimizers of :mod:`rueda.optim` are torch optimizers: return one of them from ``configure_optimizers``.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rueda.data.nest import num_examples
from rueda.errors import MissingExtra, RecipeError
from rueda.integrations.noise_meter import NoiseMeter
from rueda.nn import apply_ghost_batch_norm
from rueda.optim.rates import build_schedule
from rueda.optim.schedules import Schedule
from rueda.records import Recipe
from rueda.train.regime import batch_at, grown_batch, growth_rate_factor

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_warn
except ImportError:
    raise MissingExtra("lightning", "lightning") from None

_INSTEAD = {
    "adascale": "wrap the optimizer in rueda.optim.AdaScale",
    "additive_noise": "call rueda.optim.noise.add_noise in on_before_optimizer_step",
    "gradient_noise": "weight the losses by rueda.optim.noise.noise_weights in training_step",
    "keep_updates": "raise the Trainer's max_epochs",
    "momentum_correction": "call rueda.optim.adapters.correct_momentum in on_before_optimizer_step",
    "noise_scale_groups": "measure the whole model",
    "sync_batch_norm": "use Trainer(sync_batchnorm=True)",
}
"""fields of a recipe that the callback does not follow, and what to do instead"""


class LargeBatch(Callback):  # type: ignore[misc]
    """Follows a recipe in Lightning's training: rates, ghost batch norm, noise scale and growth of the batch.

    ==================  ==========================================================================================
    rates               ``scaling``, ``base_batch``, ``warmup``, ``warmup_epochs``, ``schedule``, ``milestones``,
                        ``decay``, ``power``, ``final_rate``: the rate of each update. The base rate is the ``lr``
                        of the optimizer's first group; other groups keep their ratio to it.
    batch norm          ``ghost_batch``: the model's layers are converted before the training starts
    noise scale         ``noise_scale_every``, ``noise_scale_memory``: ``noise_scale``, ``noise_scale_low`` and
                        ``noise_scale_high`` are logged; it needs two workers (DDP) or two micro-batches
    growth              ``growth_factor`` with ``milestones``, or ``growth_from_noise``; ``largest_batch``:
                        ``accumulate_grad_batches`` grows at the start of an epoch, by whole micro-batches; where
                        it cannot grow as far as it should, the rate falls instead
    ==================  ==========================================================================================

    Workers, batch, accumulation and epochs are those of the Trainer and its loader; precision, clipping, seed and all
    that Lightning has an option for stay with Lightning. The averages and the grown batch are in Lightning's
    checkpoints.

    Args:
        recipe: how to train; a recipe that ``rueda plan`` wrote is read with ``Recipe.load``.
    """

    def __init__(self, recipe: Recipe) -> None:
        changed = recipe.changes_from(Recipe())
        for name in changed.keys() & _INSTEAD.keys():
            expected = "a field that the callback follows"
            raise RecipeError(f"LargeBatch: {name}", expected=expected, got=changed[name], do=_INSTEAD[name])
        self.recipe = recipe
        """the recipe; from the start of a training with the Trainer's workers, batch and epochs"""
        self.schedule: Schedule | None = None
        """the learning rate as a function of the update, counted in updates of the first batch; None: left alone"""
        self.clock = 0.0
        """the position in the schedule"""
        self.grown_to = 0
        """the global batch that the noise scale asks for, above the largest one too; 0: the first one"""
        self._growth_factor = 1.0  # of the rate, where the batch cannot grow as far as it should
        self._noise: NoiseMeter | None = None
        self._saved_noise: dict[str, Any] | None = None
        self._num_examples = self._micro_batch = 0

    @property
    def follows_rates(self) -> bool:
        """Whether the recipe asks for other rates than the optimizer's own."""
        recipe = self.recipe
        return recipe.scaling != "none" or recipe.schedule != "constant" or recipe.warmup_epochs > 0

    @property
    def grows(self) -> bool:
        """Whether the batch grows."""
        return self.recipe.growth_factor is not None or self.recipe.growth_from_noise

    # Lightning's hooks, in the order in which it calls them.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Convert batch norm, before the optimizer is made and the model is sent to its device."""
        if stage == "fit" and self.recipe.ghost_batch is not None:
            apply_ghost_batch_norm(pl_module, ghost_batch=self.recipe.ghost_batch)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take workers, batch and epochs from the Trainer, and attach the meter."""
        batch, batches = _batch_size(trainer), trainer.num_training_batches
        if not math.isfinite(batches):
            expected = "a loader with a length"
            raise RecipeError("LargeBatch", expected=expected, got=batches, do="set limit_train_batches")
        workers, accumulate = trainer.world_size, trainer.accumulate_grad_batches
        steps_per_epoch = math.ceil(batches / accumulate)
        self.recipe = self.recipe.change(
            workers=workers, batch=batch, accumulate=accumulate, epochs=_epochs(trainer, steps_per_epoch)
        )
        self._num_examples = batches * batch * workers
        is_free = len(trainer.optimizers) == 1 and not trainer.lr_scheduler_configs
        if self.follows_rates or (self.grows and is_free):
            optimizer = _optimizer(trainer)
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])  # a checkpoint restores it
            recipe = self.recipe.change(rate=float(optimizer.param_groups[0]["initial_lr"]))
            self.schedule = build_schedule(recipe, steps_per_epoch)
        if self.recipe.noise_scale_every is not None:
            self._attach_meter(trainer, pl_module, self.recipe.noise_scale_every)
        if self.grows:
            self._set_batch(trainer)  # a training that continues within an epoch does not start the epoch again

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Grow the batch by gradient accumulation."""
        if not self.grows:
            return
        recipe, found = self.recipe, None if self._noise is None else self._noise.current
        if recipe.growth_from_noise and found is not None:
            now = self.grown_to or recipe.global_batch
            self.grown_to = grown_batch(recipe, now, found)
        self._set_batch(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Before the first micro-batch of an update, set the learning rate and start the meter."""
        self._micro_batch = num_examples(batch) if self._noise is not None else 0
        if batch_idx % trainer.accumulate_grad_batches == 0:
            if self._noise is not None:
                self._noise.begin(trainer.global_step)
            if self.schedule is not None:
                self._set_rates(_optimizer(trainer), self.schedule(self.clock) * self._growth_factor)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the meter that the backward pass of a micro-batch has ended."""
        if self._noise is not None:
            self._noise.part(self._micro_batch)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Measure the noise scale and log it; all workers log the same number."""
        self.clock += trainer.accumulate_grad_batches / self.recipe.accumulate
        if self._noise is None:
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        if self._noise.end(trainer.global_step, loss_scale=scale) is not None:
            pl_module.log_dict(self._noise.figures(), on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the hooks of the meter."""
        if self._noise is not None:
            self._noise.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        noise = self._saved_noise if self._noise is None else self._noise.state_dict()
        return {"clock": self.clock, "grown_to": self.grown_to, "noise": noise}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position in the schedule, the grown batch and the averages of the noise scale."""
        self.clock, self.grown_to = float(state_dict["clock"]), int(state_dict["grown_to"])
        self._saved_noise = state_dict["noise"]

    def _attach_meter(self, trainer: Trainer, module: LightningModule, every: int) -> None:
        model = trainer.strategy.model
        is_parallel = isinstance(model, DistributedDataParallel)
        if trainer.world_size > 1 and not is_parallel:
            got = type(trainer.strategy).__name__
            raise RecipeError("noise scale", expected="strategy='ddp'", got=got, do="measure it with ddp")
        if not is_parallel and trainer.accumulate_grad_batches < 2 and not self.grows:
            raise RecipeError(
                "noise scale", expected="two workers or micro-batches, whose gradients are compared", got="one",
                do="set accumulate_grad_batches=2 and half the batch, which is the same update",
            )  # fmt: skip
        if self._noise is not None:
            self._noise.close()
        self._noise = NoiseMeter(model if is_parallel else module, every=every, memory=self.recipe.noise_scale_memory)
        if self._saved_noise is not None:
            self._noise.load_state_dict(self._saved_noise)

    def _set_batch(self, trainer: Trainer) -> None:
        """Set the gradient accumulation of this epoch, and the factor of the rate where the batch cannot follow."""
        recipe = self.recipe
        split = batch_at(recipe, trainer.current_epoch, self._num_examples, self.grown_to)
        local_batch = split.local_batch * split.accumulation
        trainer.accumulate_grad_batches = max(recipe.accumulate, local_batch // recipe.batch)
        batch = trainer.accumulate_grad_batches * recipe.batch * recipe.workers
        before = self._growth_factor
        self._growth_factor = growth_rate_factor(recipe, trainer.current_epoch, batch, self.grown_to)
        if self.schedule is None and self._growth_factor < before:
            rank_zero_warn(
                f"LargeBatch: the batch stays at {batch:,} instead of {batch / self._growth_factor:,.0f}, and the "
                f"rates are your scheduler's: multiply them by {self._growth_factor:.3g}, or leave it to the recipe"
            )

    def _set_rates(self, optimizer: Optimizer, rate: float) -> None:
        first = float(optimizer.param_groups[0]["initial_lr"])
        for group in optimizer.param_groups:
            value = rate * float(group["initial_lr"]) / first
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value


def _optimizer(trainer: Trainer) -> Optimizer:
    optimizers, others = trainer.optimizers, trainer.lr_scheduler_configs
    if len(optimizers) != 1 or others:
        got = f"{len(optimizers)} optimizers and {len(others)} schedulers"
        raise RecipeError(
            "LargeBatch", expected="one optimizer and no scheduler of its own", got=got,
            do="return the optimizer alone, or leave scaling, warm-up and schedule out of the recipe",
        )  # fmt: skip
    optimizer: Optimizer = optimizers[0]
    return optimizer


def _batch_size(trainer: Trainer) -> int:
    loader = trainer.train_dataloader
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
    if size is None:
        expected, do = "one DataLoader with a batch_size", "train from one"
        raise RecipeError("LargeBatch", expected=expected, got=type(loader).__name__, do=do)
    return int(size)


def _epochs(trainer: Trainer, steps_per_epoch: int) -> int:
    """Return the epochs that the Trainer will train for, rounded up."""
    limits = []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        limits.append(trainer.max_epochs)
    if trainer.max_steps > 0:
        limits.append(math.ceil(trainer.max_steps / steps_per_epoch))
    if not limits:
        expected = "max_epochs or max_steps, the end of the schedule"
        raise RecipeError("LargeBatch", expected=expected, got=trainer.max_epochs, do="set one of the two")
    return int(min(limits))
