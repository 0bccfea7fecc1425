"""A training and its step; all updates of the package are made here.

``rueda train``, ``rueda study`` and ``rueda measure`` are loops around :meth:`Training.step`. A step

1. begins the next **epoch** if the last one has ended: a new order of the data, and the batch size of that epoch,
2. **seeds** the random numbers of this worker and this step, and fetches the **batch**,
3. evaluates the schedule for the learning **rate**, and **updates** the model and the average of its weights,
4. **counts** updates, examples, the schedule's clock and the seconds,
5. records the gradient **noise scale** if the recipe asks for it, and lets the batch grow with it.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import torch
from torch import nn

from rueda.data import DatasetLoader
from rueda.optim import AdaScale
from rueda.optim.batch_growth import BatchSplit
from rueda.optim.meters import Groups, Reading, layer_groups
from rueda.optim.rates import adapted, build_schedule
from rueda.optim.weight_average import WeightAverage
from rueda.optim.wrapper import raise_late
from rueda.records import Recipe
from rueda.records.run import NoiseRow
from rueda.tasks import Task
from rueda.tasks.half_precision import protect_for
from rueda.train import numerics
from rueda.train.layout import memory_format, parameter_dtype
from rueda.train.loaders import training_loader
from rueda.train.micro_batches import WorkerBatches, next_micro_batches
from rueda.train.noise_log import NoiseLog
from rueda.train.normalisation import convert
from rueda.train.parallel.building import pipeline_updater
from rueda.train.parallel.dividing import divided_updater
from rueda.train.parallel.division import data_place, in_mesh, mesh_for
from rueda.train.phases import build_updaters, training_only
from rueda.train.regime import batch_at, grown_batch, growth_rate_factor, micro_batch_of, noise_sigma
from rueda.train.rehearsal import Rehearsal
from rueda.train.state import TrainingState
from rueda.train.update import StepTimer, Updater
from rueda.train.utilisation import Utilisation, worker_peak
from rueda.world import World
from rueda.world.device import wait_for
from rueda.world.seeds import seed_model


class StepResult(NamedTuple):
    """The outcome of one step."""

    rate: float
    """the learning rate, AdaScale's gain included"""
    num_examples: int
    """examples of the global batch"""
    epoch_ended: bool
    """whether this was the last update of its epoch"""
    reading: Reading | None
    """the norms of the parts of this worker's gradient, if they were measured"""
    noise_rows: list[NoiseRow]
    """noise scales that were summed over the workers at this step"""


class Training:
    """Model, data, optimizer and schedule of one training, and the step that updates the model.

    Args:
        task: model, data, loss and metric.
        recipe: how to train; its ``workers`` say the global batch. They are the size of the world or the number to
            rehearse; in an elastic job the world may have more or fewer, which divide the same global batch.
        world: the workers.
        rehearse: compute the updates of all workers in this one process (:mod:`rueda.train.rehearsal`).
    """

    def __init__(self, task: Task, recipe: Recipe, world: World, *, rehearse: bool = False) -> None:
        self.given_recipe, self.world, self.rehearsed = recipe, world, rehearse
        self.given_toml = recipe.to_toml()
        """the recipe as it was given, as checkpoints hold it"""
        self.mesh = mesh_for(task, recipe, world, rehearse=rehearse)
        """the workers of each form; those of data parallelism on one worker and in a rehearsal"""
        if self.mesh.divides_model:
            recipe = in_mesh(recipe, self.mesh)
        self.data_world: World = world if self.mesh.sharers == 1 else data_place(world, self.mesh)
        """this worker's place among those that divide the data"""
        self.recipe = recipe = numerics.settled(adapted(recipe), world.device)
        numerics.apply(recipe, world.device)
        if world.device.type == "cpu":  # before anything else: loading data or building the model may run oneDNN
            protect_for(task, recipe.precision, speak=world.is_main)
        self.task = task = task.for_recipe(recipe)
        self.train_data = task.load("train")
        self.dtype = parameter_dtype(recipe)
        self.loader = training_loader(task, self.train_data, recipe, self.data_world, self.dtype)
        seed_model(recipe.seed)  # the same model on all ranks
        model = convert(task.build(recipe), recipe)
        order = memory_format(model, recipe)
        self.model = model.to(device=world.device, dtype=self.dtype).to(memory_format=order)  # type: ignore[call-overload]
        groups = layer_groups(self.model) if recipe.noise_scale_groups else {}
        self.updaters = self._build_updaters(groups, order)
        """one for each phase of the task"""
        self.updater = self.updaters[0]
        """the first phase's, or the only one; its sums and its noise scale are those of the training"""
        self.optimizer = self.updater.optimizer
        self.average = None if recipe.ema_decay is None else WeightAverage(self.model, recipe.ema_decay)
        """the exponential moving average of the weights, if the recipe asks for it"""
        if isinstance(self.loader, DatasetLoader):
            self.loader.seed_reading(recipe.seed, lambda: self.state.step)
        if isinstance(self.updater, Rehearsal):
            self.loader.read_for_workers(recipe.workers, self.updater.reading_as)
        if (line := numerics.remark(self.given_recipe, recipe)) is not None:
            self.updater.remarks.append(line)
        if rehearse and recipe.parallel != "data":
            self.updater.remarks.append(f"rehearsed with parallel = data, whose numbers are those of {recipe.parallel}")
        if recipe.adascale and recipe.optimizer != "sgd":
            self.updater.remarks.append(f"AdaScale's gain is derived for SGD; with {recipe.optimizer} it has no theory")
        num_examples = self.loader.num_examples
        self.noise = (
            None if recipe.noise_scale_every is None else NoiseLog(recipe, world, num_examples, tuple(groups))
        )  # fmt: skip
        """the gradient noise scale, if the recipe asks for it"""
        # AdaScale's clock counts steps of one worker; otherwise the clock counts steps of the initial global batch.
        clock_batch = recipe.local_batch if recipe.adascale else recipe.global_batch
        steps_per_epoch = max(1, num_examples // clock_batch)
        self.schedule = build_schedule(recipe, steps_per_epoch)
        self._last_clock = recipe.epochs * steps_per_epoch if recipe.adascale else None
        """of AdaScale: one worker's number of steps, at which the training ends"""
        self.rate = self.schedule(0.0)
        """the last update's rate, AdaScale's gain included"""
        self.state = TrainingState()
        peak = None if self.mesh.divides_model else worker_peak(world.device, recipe, os.environ)
        self.utilisation = None if peak is None else Utilisation(task, self.model, peak=peak, workers=world.size)
        """the model flops utilisation, where the peak of the device is known"""
        self._fixed_batch: int | None = None
        self._growth_factor = 1.0  # of the rate, where the batch cannot grow as far as it should
        self._epoch_begun: int | None = None
        self._has_stepped = False
        self._num_taken = 0  # examples of the last batch, of all workers
        self._loader_at_end: dict[str, Any] = {}
        self._counted_until = time.perf_counter()

    def step(
        self, *, rate: float | None = None, measure_noise: bool = False, timer: StepTimer | None = None
    ) -> StepResult:
        """Make one update, in the next epoch if the last one has ended; every worker must call it.

        Args:
            rate: the learning rate; by default that of the schedule.
            measure_noise: measure the gradient noise at this update even if the recipe does not ask for it.
            timer: its ``mark`` is called after the batch is fetched (``data``), after each ``forward`` and ``backward``
                pass, and after the update (``optimizer``).

        Raises:
            NonFiniteError: the gradients are not finite (on a GPU, those of the step before); the step is not counted.
        """
        if timer is not None:
            timer.begin()
        state, updater, optimizer = self.state, self.updater, self.optimizer
        self.begin_epoch()
        updater.begin(state.step)
        batches = self.next_batches()
        if timer is not None:
            timer.mark("data")
        if self.utilisation is not None:
            self.utilisation.note_shapes(batches[0][0])
        if not self._has_stepped and state.step > 0:
            for each in self.updaters:
                with training_only(self.model, each.trained):
                    each.form_buckets(batches)
        self._has_stepped = True
        rate = self.schedule(state.clock) * state.rate_factor * self._growth_factor if rate is None else rate
        is_logged = self.noise is not None and self.noise.wanted(state.step)
        for number, updater in enumerate(self.updaters):
            if number > 0:
                updater.begin(state.step)
            updater.timer = timer
            measures = number == 0 and (measure_noise or is_logged)
            with training_only(self.model, updater.trained):
                updater.update(batches, rate=rate, step=state.step, measure=measures, num_examples=self._num_taken)
        if self.average is not None:
            self.average.update(self.recipe.scale_of(self.global_batch))
        if self.epoch_ended:
            for updater in self.updaters:
                raise_late(updater.optimizer)  # before the weights are evaluated and saved
        if timer is not None:
            timer.mark("optimizer")
        num_examples = self._num_taken
        state.step += 1
        state.examples += num_examples
        if isinstance(optimizer, AdaScale):
            state.clock, self.rate = optimizer.clock, rate * optimizer.gain
        else:
            state.clock, self.rate = state.clock + self.global_batch / self.recipe.global_batch, rate
        self._count_seconds()
        rows = [] if self.noise is None else self._follow_noise(self.noise, is_logged)
        return StepResult(self.rate, num_examples, self.epoch_ended, self.updater.reading, rows)

    def next_batches(self) -> WorkerBatches:
        """Return the micro-batches of the next update, in the next epoch if the last one has ended."""
        while True:
            before = self.loader.position
            batches = next_micro_batches(self.loader, self.train_data, self.updater.micro_batch, self.dtype)
            if batches is not None:
                self._num_taken = self.loader.position - before
                return batches
            self.end_epoch()
            self.begin_epoch()

    def restart(self, state: TrainingState) -> None:
        """Continue from a state; model, optimizer and loader have been restored from the same checkpoint."""
        self.state = state
        for updater in self.updaters:
            updater.restart()
        self._epoch_begun = None

    def whole_model(self) -> nn.Module:
        """Return the model; if workers have parts of it, rank 0 gets a whole copy. All workers must call it."""
        model: nn.Module = self.model
        if not self.mesh.divides_model:
            return model
        state = self.updater.model_state()
        if not self.world.is_main:
            return model
        whole: nn.Module = convert(self.task.build(self.recipe), self.recipe).to(
            device=self.world.device, dtype=self.dtype
        )
        whole.load_state_dict(state)
        return whole

    def _build_updaters(self, groups: Groups, order: torch.memory_format) -> list[Updater]:
        task, recipe, world = self.task, self.recipe, self.world
        if self.mesh.pipeline > 1:
            return [
                pipeline_updater(task, recipe, world, self.model, self.train_data, self.mesh, self.dtype, order)
            ]  # fmt: skip
        if self.mesh.divides_model:
            return [divided_updater(task, recipe, world, self.model, self.mesh, order)]
        rehearse = self.rehearsed
        return build_updaters(task, recipe, world, self.model, groups=groups, memory_format=order, rehearse=rehearse)

    # Epochs.

    def begin_epoch(self) -> None:
        """Begin the epoch of the state, with its order of the data and its batch size; later calls do nothing."""
        if self._epoch_begun == self.state.epoch:
            return
        self._epoch_begun = self.state.epoch
        self.loader.set_epoch(self.state.epoch)
        self.set_batch()
        if self.recipe.is_local and self.state.epoch >= self.recipe.sync_from_epoch:
            self.updater.begin_local()
        self.model.train()
        self.leave_out_time()

    @property
    def epoch_ended(self) -> bool:
        """Whether all updates of the epoch are made; AdaScale's last epoch may end before its data do."""
        return self.loader.epoch_ended or (self._last_clock is not None and self.is_over)

    @property
    def is_over(self) -> bool:
        """Whether the training has come to its end: the last epoch, or with AdaScale as many steps as one worker's.

        A step of AdaScale counts as many of one worker's steps as its gain says. Johnson et al. 2020 end the training
        when the sum reaches the number of steps of one worker; this takes the recipe's epochs if the gain is always the
        number of workers, and more of them otherwise.
        """
        if self._last_clock is not None:
            return self.state.clock >= self._last_clock
        return self.state.epoch >= self.recipe.epochs

    def end_epoch(self) -> None:
        """Count the epoch as finished; the batch size stays until the next epoch begins."""
        wait_for(self.world.device)  # the time of the last kernels belongs to the epoch
        self._count_seconds()
        self.updater.begin(self.state.step)  # so that a restarted evaluation draws the same numbers
        self._loader_at_end = self.loader.state_dict()
        self.state.epoch += 1
        self.loader.set_epoch(self.state.epoch)

    def reopen_epoch(self) -> None:
        """Undo :meth:`end_epoch`: all updates of the epoch are made, but it is not evaluated yet."""
        self.state.epoch -= 1
        self.loader.load_state_dict(self._loader_at_end)

    # The batch.

    @property
    def global_batch(self) -> int:
        """The number of examples that all workers together take for one update."""
        return self.loader.global_batch

    def set_batch(self) -> None:
        """Set the batch size of the current epoch; every worker changes it at the same step."""
        if self._fixed_batch is None:
            wanted = batch_at(self.recipe, self.state.epoch, self.loader.num_examples, self.state.batch)
        else:
            wanted = BatchSplit(self._fixed_batch, 1)
        size = self.data_world.size
        workers = size if self._fixed_batch is not None and not self.rehearsed else self.recipe.workers
        self.loader.global_batch = wanted.local_batch * wanted.accumulation * workers
        micro_batch = wanted.local_batch
        if not self.rehearsed and size != workers:
            micro_batch = micro_batch_of(self.loader.batch, self.recipe.largest_local_batch or self.recipe.batch)
        for updater in self.updaters:
            updater.micro_batch = micro_batch
            updater.sigma = noise_sigma(self.recipe, self.global_batch)
        if self._fixed_batch is None:
            self._growth_factor = growth_rate_factor(self.recipe, self.state.epoch, self.global_batch, self.state.batch)

    def fix_batch(self, local_batch: int) -> None:
        """Use this local batch from the next step on, regardless of the recipe; for measurements."""
        self._fixed_batch = local_batch
        self.set_batch()

    def _follow_noise(self, noise: NoiseLog, is_logged: bool) -> list[NoiseRow]:
        """Keep the last update's reading; at fixed steps, sum the readings and let the batch follow them."""
        if is_logged and self.updater.reading is not None:
            noise.note(self.updater.reading, self.updater.source, self.state, self.global_batch)
        if not noise.due(self.state.step):
            return []
        rows = noise.flush()
        if self.recipe.growth_from_noise and noise.grown() and noise.current is not None:
            before = self.state.batch or self.global_batch
            batch = grown_batch(self.recipe, before, noise.current)
            if batch > before:
                self.state.batch = batch
                self.set_batch()
        return rows

    # Time.

    def leave_out_time(self) -> None:
        """Exclude the time since the last step from ``state.seconds``, since it was not spent on training."""
        self._counted_until = time.perf_counter()

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.state.seconds += now - self._counted_until
        self._counted_until = now
