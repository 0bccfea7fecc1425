"""One training and its step: the only place where updates are made.

``rueda train``, ``rueda study`` and ``rueda measure`` are loops around :meth:`Training.step`. A step

1. goes to the next **epoch** where the last one has ended: the loader's order, and the batch that the recipe wants,
2. **seeds** the random numbers of this worker and this step, and fetches the **batch**,
3. reads the learning **rate** off the schedule, and **updates** the model,
4. **counts** updates, examples, the schedule's clock and the seconds,
5. keeps the gradient **noise scale**, where the recipe asks for it, and lets the batch grow with it.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import torch
from torch import nn

from rueda.data import DatasetLoader
from rueda.optim import AdaScale
from rueda.optim.batch_growth import Realisation
from rueda.optim.meters import Reading, layer_groups
from rueda.records import Recipe
from rueda.records.run import NoiseRow
from rueda.tasks import Task
from rueda.train.layout import memory_format
from rueda.train.loaders import training_loader
from rueda.train.noise_log import NoiseLog
from rueda.train.normalisation import convert
from rueda.train.optimizers import build_optimizer
from rueda.train.rates import build_schedule
from rueda.train.regime import adapted, batch_at, grown_batch, noise_sigma
from rueda.train.rehearsal import Rehearsal
from rueda.train.state import TrainingState
from rueda.train.update import Updater
from rueda.world import World, instruction_sets
from rueda.world.seeds import seed_model


class StepTimer(Protocol):
    """Measures the stages of a step, such as :class:`rueda.measure.clock.StageClock`."""

    def begin(self) -> None:
        """Start the first stage of a step."""

    def mark(self, stage: str) -> None:
        """End a stage, ``data`` or ``optimizer``."""


class StepResult(NamedTuple):
    """What one step did."""

    rate: float
    """the learning rate, AdaScale's gain included"""
    num_examples: int
    """taken by all workers together"""
    epoch_ended: bool
    """whether this was the last update of its epoch"""
    reading: Reading | None
    """the norms of the gradient's parts on this worker, if they were measured"""
    noise_rows: list[NoiseRow]
    """noise scales that were added up over the workers at this step"""


class Training:
    """Model, data, optimizer and schedule of one training, and the step that updates the model.

    Args:
        task: model, data, loss and metric.
        recipe: how to train; its ``workers`` are those of the world, or the ones to rehearse.
        world: the workers.
        rehearse: be all of the recipe's workers in this one process (:mod:`rueda.train.rehearsal`).
    """

    def __init__(self, task: Task, recipe: Recipe, world: World, *, rehearse: bool = False) -> None:
        self.task, self.given_recipe, self.world, self.rehearsed = task, recipe, world, rehearse
        self.recipe = recipe = adapted(recipe)
        if world.device.type == "cpu":  # first of all: loading data or building the model may run oneDNN
            instruction_sets.protect(recipe.precision, speak=world.is_main)
        self.train_data = task.load("train")
        self.dtype = torch.float64 if recipe.precision == "float64" else torch.float32
        self.loader = training_loader(task, self.train_data, recipe, world, self.dtype)
        seed_model(recipe.seed)  # the same model on all ranks
        model = convert(task.build(recipe), recipe)
        order = memory_format(model, recipe)
        self.model = model.to(device=world.device, dtype=self.dtype).to(memory_format=order)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(recipe, self.model)
        compiled: nn.Module = torch.compile(self.model) if recipe.compile else self.model  # type: ignore[assignment]
        wrapped = world.wrap(compiled, sync_buffers=False, gradient_as_bucket_view=True)
        groups = layer_groups(self.model) if recipe.noise_scale_groups else {}
        self.updater = (Rehearsal if rehearse else Updater)(task, recipe, world, wrapped, self.optimizer, groups)
        if isinstance(self.updater, Rehearsal) and isinstance(self.loader, DatasetLoader):
            self.loader.read_as(recipe.workers, self.updater.as_reader)
        num_examples = self.loader.num_examples
        self.noise = (
            None if recipe.noise_scale_every is None else NoiseLog(recipe, world, num_examples, tuple(groups))
        )  # fmt: skip
        """the gradient noise scale, if the recipe wants it"""
        # AdaScale's clock counts the steps of one worker, all others those of the first batch size.
        clock_batch = recipe.local_batch if recipe.adascale else recipe.global_batch
        self.schedule = build_schedule(recipe, max(1, num_examples // clock_batch))
        self.rate = self.schedule(0.0)
        """the last update's rate, AdaScale's gain included"""
        self.state = TrainingState()
        self._fixed_batch: int | None = None
        self._epoch_begun: int | None = None
        self._counted_until = time.perf_counter()

    def step(
        self, *, rate: float | None = None, measure_noise: bool = False, timer: StepTimer | None = None
    ) -> StepResult:
        """Make one update; goes to the next epoch first, where one has ended. All workers must call it.

        Args:
            rate: the learning rate of a measurement; by default the schedule says it.
            measure_noise: measure the gradient noise at this update, also where the recipe does not ask for it.
            timer: is told when the batch has come (``data``) and when the model is updated (``optimizer``).

        Raises:
            NonFiniteError: the optimizer refuses the gradients; the step does not count.
        """
        if timer is not None:
            timer.begin()
        state, updater, optimizer = self.state, self.updater, self.optimizer
        self.begin_epoch()
        updater.begin(state.step)
        while (batch := self.loader.next_batch()) is None:
            self.end_epoch()
            self.begin_epoch()
        if timer is not None:
            timer.mark("data")
        rate = self.schedule(state.clock) if rate is None else rate
        is_logged = self.noise is not None and self.noise.wanted(state.step)
        updater.update(*batch, rate=rate, step=state.step, measure=measure_noise or is_logged)
        if timer is not None:
            timer.mark("optimizer")
        num_examples = batch[1].shape[0] * self.world.size
        state.step += 1
        state.examples += num_examples
        if isinstance(optimizer, AdaScale):
            state.clock, self.rate = optimizer.clock, rate * optimizer.gain
        else:
            state.clock, self.rate = state.clock + self.global_batch / self.recipe.global_batch, rate
        self._count_seconds()
        rows = [] if self.noise is None else self._follow_noise(self.noise, is_logged)
        return StepResult(self.rate, num_examples, self.epoch_ended, updater.reading, rows)

    # Epochs.

    def begin_epoch(self) -> None:
        """Go to the epoch that the state says, with the batch that the recipe wants there; done once an epoch."""
        if self._epoch_begun == self.state.epoch:
            return
        self._epoch_begun = self.state.epoch
        self.loader.set_epoch(self.state.epoch)
        self.set_batch()
        self.model.train()
        self.leave_out_time()

    @property
    def epoch_ended(self) -> bool:
        """Whether all updates of the epoch are made."""
        return self.loader.num_batches_left() == 0

    def end_epoch(self) -> None:
        """Count the epoch as finished; the batch stays until the next one begins."""
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()  # the time of the last kernels belongs to the epoch
        self._count_seconds()
        self.updater.begin(self.state.step)  # an evaluation that draws random numbers draws the same after a restart
        self.state.epoch += 1
        self.loader.set_epoch(self.state.epoch)

    # The batch.

    @property
    def global_batch(self) -> int:
        """Examples that all workers together take for one update."""
        return self.loader.batch * self.world.size

    def set_batch(self) -> None:
        """Take the batch that the recipe wants in this epoch; every worker changes at the same step."""
        if self._fixed_batch is None:
            wanted = batch_at(self.recipe, self.state.epoch, self.loader.num_examples, self.state.batch)
        else:
            wanted = Realisation(self._fixed_batch, 1)
        virtual_workers = self.recipe.workers if self.rehearsed else 1
        self.loader.batch = wanted.local_batch * wanted.accumulation * virtual_workers
        self.updater.micro_batch = wanted.local_batch
        self.updater.sigma = noise_sigma(self.recipe, self.global_batch)

    def fix_batch(self, local_batch: int) -> None:
        """Take local batches of this size from the next step on, whatever the recipe says: for measurements."""
        self._fixed_batch = local_batch
        self.set_batch()

    def _follow_noise(self, noise: NoiseLog, is_logged: bool) -> list[NoiseRow]:
        """Keep the last update's reading; when it is time, add up what was read and let the batch follow it."""
        if is_logged and self.updater.reading is not None:
            noise.note(self.updater.reading, self.updater.source, self.state, self.global_batch)
        if not noise.due(self.state.step):
            return []
        rows = noise.flush()
        if self.recipe.growth_from_noise and noise.grown() and noise.current is not None:
            batch = grown_batch(self.recipe, self.global_batch, noise.current, self.loader.num_examples)
            if batch > self.global_batch:
                self.state.batch = batch
                self.set_batch()
        return rows

    # Time.

    def leave_out_time(self) -> None:
        """Leave the time since the last step out of ``state.seconds``: it was not training."""
        self._counted_until = time.perf_counter()

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.state.seconds += now - self._counted_until
        self._counted_until = now
