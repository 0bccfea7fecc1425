"""One update: forward, loss, backward, all-reduce, optimizer step. This is the hot path.

Nothing here synchronises with the device: sums of losses and correct answers stay on it until they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rueda.data.nest import map_tensors
from rueda.errors import NonFiniteError, RecipeError, TaskError
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
from rueda.train.compressed_rehearsal import RehearsedCompression
from rueda.train.divergence import ADVICE, MOST_SKIPPED, FiniteTest
from rueda.train.gradient_compression import compress_exchange
from rueda.train.micro_batches import MicroBatch, WorkerBatches, halves
from rueda.train.optimizers import leave_out_whole_updates, rate_ratios
from rueda.train.parameter_exchange import ParameterExchange, flat, write_flat
from rueda.train.power_sgd import PowerSGD
from rueda.train.random_state import random_state, restore_random_state
from rueda.train.totals import Totals
from rueda.train.update_weight import UpdateWeight, rescale, with_noise
from rueda.world import World, instruction_sets
from rueda.world.gathering import gathering_alone, gathering_by
from rueda.world.seeds import seed_worker

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_for(recipe: Recipe, world: World) -> torch.autocast | None:
    """Return the autocast context for the recipe's precision, or None."""
    dtype = _AUTOCAST.get(recipe.precision)
    if dtype is not None and world.device.type == "cpu":
        instruction_sets.protect(recipe.precision, speak=world.is_main)
    return None if dtype is None else torch.autocast(world.device.type, dtype)


def refuse_local(tensor: Tensor) -> Tensor:
    """Raise RecipeError: a step gathers tensors, but its workers do not have the same parameters."""
    raise RecipeError(
        "the step gathers tensors of all workers, but with sync_every or an outer optimizer their parameters differ "
        "between two exchanges; leave these out"
    )


def refuse_gather(tensor: Tensor) -> Tensor:
    """Raise RecipeError: a step gathers tensors of all workers, of which several have the same examples."""
    raise RecipeError(
        "the step gathers tensors of all workers, but those of a pipeline or of a tensor group share their examples; "
        "use parallel = data or sharded"
    )


class StepTimer(Protocol):
    """Measures the stages of a step, such as :class:`rueda.measure.clock.StageClock`."""

    def begin(self) -> None:
        """Start the first stage of a step."""

    def mark(self, stage: str) -> None:
        """End the stage ``data``, ``forward``, ``backward`` or ``optimizer``."""


class Updater:
    """Computes updates of a model from local batches.

    Args:
        task: provides the step and the metric.
        recipe: precision, clipping and noise.
        world: the workers.
        model: the model itself; its parameters that require a gradient are trained.
        step: computes the losses of a batch: a :class:`rueda.train.step_module.StepModule`, wrapped by
            :meth:`rueda.World.wrap`.
        optimizer: the optimizer of the model's parameters.
        groups: parameter groups whose noise scale is measured separately.
        place: this worker's place among those that divide the data; by default among all.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        model: nn.Module,
        step: nn.Module,
        optimizer: Optimizer,
        groups: Groups,
        *,
        place: World | None = None,
    ) -> None:
        self.recipe = recipe
        """the recipe of this phase"""
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
        self.trained: list[nn.Parameter] | None = None
        """the parameters of a phase; None if it trains all of the model's"""
        self.timer: StepTimer | None = None
        """is told when a forward or a backward pass has ended"""
        self.exchange: ParameterExchange | None = None
        """exchanges parameters, while each worker makes updates of its own; None: gradients are averaged"""
        self._task, self._recipe, self._world = task, recipe, world
        self._model, self._compute = model, step
        if self.scaler.is_enabled():
            leave_out_whole_updates(optimizer)
        self.optimizer = optimizer
        """the optimizer of the trained parameters"""
        self._autocast: AbstractContextManager[Any] = autocast_for(recipe, world) or nullcontext()
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
        self._parts = PartsMeter(self._parameters, groups)
        self.model = model
        """the model itself"""
        self.named = {name: one for name, one in model.named_parameters() if one.requires_grad}
        """the trained parameters by name"""
        self._place = place or world
        self._rank = self._place.rank
        # Of workers that compute the same losses together, neighbours in rank order, the first one counts them.
        self._counts = world.rank % (world.size // self._place.size) == 0
        self._finite = FiniteTest(model, MOST_SKIPPED if self.scaler.is_enabled() else 0)
        self._rates = rate_ratios(optimizer, recipe.rate)
        self._exchange: ExchangeMeter | None = None
        self._mean_share: float | None = None  # examples of the update, per worker; None: as many as this worker has
        self.restart()
        wanted = isinstance(optimizer, AdaScale) or recipe.noise_scale_every is not None
        if wanted and isinstance(step, DistributedDataParallel):
            self._exchange = ExchangeMeter(step, groups)
        self.compression: PowerSGD | RehearsedCompression | None = compress_exchange(step, recipe, self.named)
        """the compression of gradients that has a state of its own, or that averages those of virtual workers"""

    def set_phase(self, trained: list[nn.Parameter], rate: float) -> None:
        """Make this the updater of a phase that trains some parameters; ``rate`` is that of the training's recipe."""
        self.trained, self._rates = trained, rate_ratios(self.optimizer, rate)

    def restart(self) -> None:
        """Forget the updates before; called at the start and when the training goes back to a checkpoint."""
        self.begin_totals()
        self.reading = None
        self._rate: float | None = None
        self._finite.forget()
        with suppress(NonFiniteError):
            raise_late(self.optimizer)

    def begin_totals(self) -> None:
        """Begin new sums of losses and correct answers."""
        self.totals = Totals(self._task, self._world.device, finite_only=self._skips)

    @property
    def is_skipping(self) -> bool:
        """Whether ``on_divergence = skip`` has left out the last update."""
        return self._skips and self._finite.num_skipped > 0

    def begin(self, step: int) -> None:
        """Seed this worker's random numbers for a step, before its batch is read from the data set."""
        seed_worker(self._recipe.seed, self._place.rank, step)

    def synchronize_buffers(self) -> None:
        """Make the model's buffers equal on all workers, before an evaluation or a checkpoint; all must call it."""
        synchronize_buffers(self._model, self._world)

    # Workers that make updates of their own.

    def begin_local(self) -> None:
        """Let each worker make updates of its own from now on, if it does not yet; all have the same parameters."""
        if self.exchange is None:
            self.exchange = ParameterExchange(self._recipe, self.named)

    def end_local(self) -> None:
        """Average gradients at every update again, since the training has gone back; all have the same parameters."""
        self.exchange = None

    @contextmanager
    def mean_parameters(self) -> Iterator[None]:
        """Hold the mean of the workers' parameters in the model inside the block, which all workers must enter."""
        if self.exchange is None or self._world.size == 1:
            yield
            return
        tensors = list(self.named.values())
        own = flat(tensors)
        write_flat(tensors, self._world.all_reduce(own, "mean"))
        try:
            yield
        finally:
            write_flat(tensors, own)

    def settle(self) -> None:
        """Leave the mean of the workers' parameters in the model, at the end of a training; all must call it.

        Exchanges under way end unused: the result is the mean that was evaluated.
        """
        if self.exchange is not None and self._world.size > 1:
            self.exchange.wait()
            tensors = list(self.named.values())
            write_flat(tensors, self._world.all_reduce(flat(tensors), "mean"))

    def own_state(self) -> dict[str, Any]:
        """Return what this worker does not share with the others between two exchanges."""
        return {
            "parameters": {name: one.detach().clone() for name, one in self.named.items()},
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take over a worker's :meth:`own_state`."""
        with torch.no_grad():
            for name, one in self.named.items():
                one.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(map_tensors(torch.clone, state["optimizer"]))
        if self._scales and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])

    def states_of_workers(self) -> list[dict[str, Any]]:
        """Gather the own states of all workers, which must all call it."""
        return self._world.all_gather_object(self.own_state())

    def load_states_of_workers(self, states: list[dict[str, Any]]) -> None:
        """Take over this worker's state, if there are as many as workers; otherwise all keep the mean."""
        if len(states) == self._world.size:
            self.load_own_state(states[self._world.rank])

    def model_state(self) -> dict[str, Any]:
        """Return the state of the whole model, at least on rank 0; all workers must call it."""
        return self.whole_tensors(self._model.state_dict())

    def whole_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors, at least on rank 0, from this worker's by parameter; all workers must call it."""
        return tensors

    def load_whole_tensors(self, own: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Copy what belongs to this worker of the whole tensors of a state into its own, by name."""
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state of the whole model, at least on rank 0; all workers must call it."""
        return self.optimizer.state_dict()

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Load the state of the whole model."""
        self._model.load_state_dict(state)

    def own_optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return this worker's part of the optimizer's state of the whole model."""
        return state

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context in which this worker has the whole model, if it has parts of all tensors otherwise."""
        return nullcontext()

    def compute(self, model: nn.Module, batch: Any) -> Losses:
        """Compute the losses of a batch on all workers at once, or within :meth:`gathered` on this one."""
        return self._task.run_step(model, batch)

    def losses(self, model: nn.Module, batch: Any, num_examples: int) -> list[tuple[Losses, Any, int]]:
        """Compute the losses of a batch in an evaluation, by parts: losses, batch and number of examples."""
        return [(self.compute(model, batch), batch, num_examples)]

    def form_buckets(self, batches: WorkerBatches) -> None:
        """Compute gradients and drop them, as the first thing that a resumed training does on several workers.

        DistributedDataParallel reduces the gradients of its first backward pass in one bucket, and those of all others
        in buckets that it forms in the order in which gradients become ready. From three workers on, the place of a
        number in its bucket decides in which order the workers' numbers are added. So a resumed training leaves its
        first backward pass behind before it continues, and rounds as one that was never stopped.
        """
        if not isinstance(self._compute, DistributedDataParallel) or self.exchange is not None:
            return
        if self._exchange is not None:
            self._exchange.active = False
        if self.compression is not None:
            self.compression.begin(0)
        state = random_state()
        with self._restoring_gradients_and_buffers():
            self._accumulate_gradients(batches[0], None)
        restore_random_state(state)

    def update(
        self,
        batches: WorkerBatches,
        *,
        rate: float,
        step: int,
        measure: bool = False,
        num_examples: int | None = None,
    ) -> None:
        """Make one update from this worker's examples.

        Args:
            batches: the micro-batches of this worker, or of each virtual worker.
            rate: the learning rate.
            step: the number of updates so far, which seeds the gradient noise.
            measure: also compare the parts of the gradient; the result is ``reading``.
            num_examples: the examples of all workers; by default all have as many as this one.

        Raises:
            NonFiniteError: the gradients are not finite; on a GPU, those of the update before.
        """
        self.reading = None
        if self.exchange is not None:
            self.update_own(batches[0], rate=rate, step=step, rank=self._world.rank)
            if not self.exchange.exchange(step + 1, [self.named], self._begin_mean):
                raise NonFiniteError(f"nan or inf in the parameters of a worker: {ADVICE}")
            return
        self._mean_share = None if num_examples is None else num_examples / self._place.size
        if self.compression is not None:
            self.compression.begin(step)
        try:
            self._gradients(batches, step, measure)
            self._step(rate, step)
        finally:  # also after an error, or the next update would add its gradients to these
            self.optimizer.zero_grad(set_to_none=True)

    def update_own(self, parts: list[MicroBatch], *, rate: float, step: int, rank: int) -> None:
        """Make an update of one worker by its own gradients, without any communication.

        Args:
            parts: the micro-batches of the worker.
            rate: the learning rate.
            step: the number of updates so far.
            rank: the worker, which may be a virtual one.
        """
        self._mean_share, self._rank = None, rank
        try:
            with gathering_by(refuse_local) if self._recipe.workers > 1 else gathering_alone():
                self._worker_gradients(parts, step, False)
            self._step(rate, step)
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def _begin_mean(self, own: list[Tensor]) -> Callable[[], Tensor]:
        """Begin the mean of the workers' vectors, of which this process has one; without a delay nothing overlaps."""
        if self._recipe.sync_delay == 0:
            return lambda: self._world.all_reduce(own[0], "mean")  # in shared memory, where the workers have some
        finish = self._world.begin_all_reduce(own[0])
        return lambda: finish() / self._world.size

    def _gradients(self, batches: WorkerBatches, step: int, measure: bool) -> None:
        with self._gathering():
            self._worker_gradients(batches[0], step, measure)

    def _gathering(self) -> AbstractContextManager[None]:
        """Return the context in which a step of the task gathers tensors of the workers that divide the data."""
        if self._place.size == 1:
            return gathering_alone()
        return nullcontext() if self._place.size == self._world.size else gathering_by(refuse_gather)

    def _worker_gradients(self, parts: list[MicroBatch], step: int, measure: bool) -> None:
        local_batch = sum(part.num_examples for part in parts)
        noise = self._noise(self._rank, local_batch, step)
        if self._exchange is not None:
            adapts = isinstance(self.optimizer, AdaScale)
            self._exchange.active = adapts or measure
            factor = self._accumulate_gradients(parts, noise)
            read = self._exchange.read if adapts else self._exchange.take
            self._use_reading(read(self._mean_share or local_batch, local_batch), factor, measure)
        elif measure or (isinstance(self.optimizer, AdaScale) and self.optimizer.scale > 1):
            self._accumulate_and_measure(parts, noise)
        else:
            self._accumulate_gradients(parts, noise)

    def _use_reading(self, reading: Reading | None, factor: Tensor | float, measure: bool) -> None:
        """Pass a reading to AdaScale, which needs it before the step; with ``measure`` keep it.

        The norms were measured before the gradients were multiplied by ``factor``.
        """
        if reading is None:
            return
        if isinstance(factor, Tensor) or factor != 1.0:
            reading = reading._replace(norms=reading.norms * factor**2)
        if self.scaler.is_enabled():
            reading = reading._replace(norms=reading.norms / self.scaler.get_scale() ** 2)
        if isinstance(self.optimizer, AdaScale):
            self.optimizer.observe_sum(*reading.sums(), num_parts=reading.num_parts)
            reading = reading._replace(
                norms=reading.norms / self._world.size
            )  # the norms are equal on all workers, and their sum must count them once
        if measure:
            self.reading = reading

    def _accumulate_and_measure(self, parts: list[MicroBatch], noise: Tensor | None) -> None:
        """Accumulate gradients and compare those of the micro-batches, or of two halves of a single batch.

        Batch norm would normalise each half by its own statistics, which changes the training, and a step may compare
        examples with each other. Then the gradient is computed from the whole batch as usual, and once more from the
        halves for the measurement only, which about doubles the time of this update. (Ghost batch norm is not affected
        if each ghost batch lies within one half.)
        """
        meter, total = self._parts, parts[0].num_examples
        if len(parts) > 1:
            self.source = "micro-batches"
            factor = self._accumulate_gradients(parts, noise, meter)
        elif total > 1:
            self.source = "halves"
            divided = halves(parts[0])
            if divided is None:
                raise RecipeError(
                    "the noise scale is measured from halves of the batch, but this one's tensors do not all count its "
                    "examples; set accumulate to 2 or more, so that its parts are collated by themselves"
                )
            if self._halves_are_equivalent(total):
                factor = self._accumulate_gradients(divided, noise, meter)
            else:
                self._accumulate_gradients(parts, noise)
                if total < 4 and self._norms:
                    raise RecipeError(
                        f"the noise scale of a model with batch norm is measured from halves of the batch, and {total} "
                        "examples are too few to normalise; set batch to 4 or more"
                    )
                with self._restoring_gradients_and_buffers():
                    factor = self._accumulate_gradients(divided, noise, meter)
                    reading = meter.finish()
                self._use_reading(reading, factor, True)
                return
        else:
            self._accumulate_gradients(parts, noise)
            return
        self._use_reading(meter.finish(), factor, True)

    def _halves_are_equivalent(self, total: int) -> bool:
        """Return whether two halves of a batch give the same gradient as the whole batch."""
        return self._task.step is None and all(
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
        self, parts: list[MicroBatch], noise: Tensor | None, meter: PartsMeter | None = None
    ) -> Tensor | float:
        """Accumulate the gradients of micro-batches; a meter reads each of them.

        The workers' gradients are averaged as if each had the same number of examples. So the losses of each are
        divided by that number, the mean share, of which a worker may have a little more or less.

        Returns:
            What the gradients were multiplied by at the end, after the meter has read them.
        """
        total = self._mean_share or sum(part.num_examples for part in parts)
        world = self._world if self.exchange is None else World()  # an update of its own weighs its own examples
        weight = None if self._task.step is None else UpdateWeight(world)
        start = 0
        for part in parts:
            is_last = part is parts[-1]
            with self._skip_all_reduce_unless(is_last=is_last):
                with self._autocast:
                    result = self._losses_of(part.batch)
                self._mark("forward")
                if weight is not None:
                    weight.add(result)
                    if is_last:
                        weight.exchange()
                noisy = with_noise(result, noise, start, part.num_examples)
                self._backward(noisy.total() / total)
            self._mark("backward")
            self.totals.add(result, part.batch, part.num_examples, counted=self._counts)
            if meter is not None:
                meter.take(part.num_examples)
            start += part.num_examples
        return 1.0 if weight is None else self._rescale(weight, round(total * world.size), meter)

    def _losses_of(self, batch: Any) -> Losses:
        try:
            result: Losses = self._compute(batch)
        except RuntimeError as error:
            if "finished reduction in the prior iteration" in str(error):
                raise self._unused("in the last update") from None
            raise
        return result

    def _unused(self, which: str) -> TaskError:
        return TaskError(
            f"the step of task {self._task.name} did not use all parameters {which}, so that the workers cannot "
            "average their gradients; freeze what is never used (requires_grad_(False)), or add 0 * parameter.sum() "
            "to the losses"
        )

    def _check_all_used(self) -> None:
        """Refuse to average where a parameter has no gradient, which other workers may have."""
        missing = {id(one) for one in self._parameters if one.grad is None}
        if missing:
            names = [name for name, one in self._model.named_parameters() if id(one) in missing]
            raise self._unused(f"({names[0]} has no gradient)")

    def _backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise TaskError(
                f"the losses of task {self._task.name} do not depend on any parameter that is trained; do not detach "
                "them, and leave requires_grad of some parameters on"
            )
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _rescale(self, weight: UpdateWeight, num_examples: int, meter: PartsMeter | None) -> Tensor | float:
        """Divide the gradients by the weight of the update instead of its examples."""
        factor = weight.factor(num_examples)
        if meter is None:
            rescale(self._parameters, factor)
        else:
            meter.rescale(factor)
        return factor

    def _mark(self, stage: str) -> None:
        if self.timer is not None:
            self.timer.mark(stage)

    def _noise(self, rank: int, num_examples: int, step: int) -> Tensor | None:
        if self.sigma == 0:
            return None
        seed, device = self._recipe.seed, self._world.device
        return noise_weights(num_examples, self.sigma, seed=seed, step=step, rank=rank, device=device)

    def _skip_all_reduce_unless(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context without gradient all-reduce, except for the last micro-batch."""
        if (is_last and self.exchange is None) or not isinstance(self._compute, DistributedDataParallel):
            return nullcontext()
        return self._compute.no_sync()

    def _step(self, rate: float, step: int) -> None:
        recipe, optimizer = self._recipe, self.optimizer
        for group, ratio in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * ratio
        if recipe.momentum_correction and self._rate is not None:
            correct_momentum(optimizer, self._rate, rate)
        self._rate = rate
        if recipe.clip is not None or recipe.additive_noise > 0:
            self.scaler.unscale_(optimizer)
        if recipe.additive_noise > 0:
            add_noise(self._parameters, step=step, eta=recipe.additive_noise, seed=recipe.seed)
        norm = self._clipped_norm()
        before = self._finite.num_skipped
        # Another worker's gradient may be finite: then all workers find it in the next exchange.
        is_finite = self.exchange is not None or self._finite.check(norm)
        if self._skips and not is_finite and before == 0:
            self.remarks.append(f"update {step + 1}: the gradient is not finite; the update was left out")
        elif self._skips and is_finite and before > 1:
            self.remarks.append(f"update {step + 1}: the gradient is finite again; {before} updates were left out")
        self.scaler.step(optimizer)
        self.scaler.update(None if self._scales else 1.0)

    def _clipped_norm(self) -> Tensor | None:
        """Clip the gradients if the recipe says so, and return their norm before; None if it was not computed."""
        clip = self._recipe.clip
        return None if clip is None else nn.utils.clip_grad_norm_(self._parameters, clip)
