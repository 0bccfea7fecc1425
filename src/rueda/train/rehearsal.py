"""Rehearsal: N virtual workers in one process, with the numbers of N real ones.

The accuracy that many workers reach depends on what each of them computes, not on how many machines compute it: on its
examples, on the statistics of its batch norm, on its dropout masks, and on the averaging of the gradients. One process
can compute all of this, for one worker after another:

- **The same shards.** Of each global batch, worker r takes every N-th example from the r-th on: exactly the examples
  that its own loader would return.
- **Batch norm per worker.** Each worker's examples are normalised by themselves. Running statistics are linear in
  the batch statistics, so their mean over the workers is kept from step to step (for real workers it is computed
  before an evaluation or a checkpoint).
- **Dropout per worker.** Each worker draws its masks from its own generator, seeded by (seed, rank, step).
- **The same average.** Every worker's mean loss has the weight 1/N.

Virtual workers pass through the network in groups: one at a time where a worker's batch is large enough to keep the
processor busy, several at once where it is small. Within a group, layers that mix examples or draw random numbers
(batch norm, dropout) run worker by worker; all other layers see one large batch. The user's model or loss may also mix
examples or draw random numbers in its own code. So the first updates are computed both in groups and one worker at a
time; where the gradients differ, the workers run one at a time from then on. With a step of the task's own, or with
batches of different shapes, they always do; steps that gather tensors of all workers run in lock-step
(:mod:`rueda.train.lock_step`).

The throughput of a rehearsal is that of this machine, never that of N machines.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from rueda.errors import RecipeError
from rueda.nn import SyncBatchNorm
from rueda.optim import AdaScale
from rueda.optim.meters import Groups
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.buffers import buffers_restored, other_buffers
from rueda.train.compressed_rehearsal import RehearsedCompression, rehearsed_compression
from rueda.train.lock_step import GatherNeeded, refuse, run_in_lock_step
from rueda.train.micro_batches import MicroBatch, WorkerBatches, can_join, join
from rueda.train.update import Updater
from rueda.train.update_weight import UpdateWeight, with_noise
from rueda.train.virtual_workers import RandomStreams, RunningStatistics, WorkerBuffers, WorkerGroup
from rueda.world import World
from rueda.world.gathering import gathering_alone, gathering_by

GROUP_EXAMPLES = 256
"""examples per forward pass on a CPU: more exceed the cache, fewer leave the processor idle"""
NUM_CHECKED = 3
"""number of updates computed both ways; in the first one, a layer initialised to zero hides differences before it"""
_TOLERANCES = {"float64": 1e-9, "float32": 1e-3}
_LOW_PRECISION_TOLERANCE = 0.05


class Rehearsal(Updater):
    """Computes the updates of ``recipe.workers`` virtual workers from global batches; see :class:`Updater`."""

    compression: RehearsedCompression | None

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        model: nn.Module,
        step: nn.Module,
        optimizer: Optimizer,
        groups: Groups,
    ) -> None:
        self._worker_buffers = WorkerBuffers({}, recipe.workers)
        super().__init__(task, recipe, world, model, step, optimizer, groups)
        self._size = recipe.workers
        self._synchronises = any(isinstance(layer, SyncBatchNorm) for layer in self._norms)
        if self._synchronises and isinstance(optimizer, AdaScale):
            raise RecipeError(
                "adascale compares the gradients of single workers, but with sync_batch_norm all workers pass through "
                "the network at once: they cannot be rehearsed together; omit one, or train on real workers"
            )
        layers = [layer for layer in model.modules() if isinstance(layer, _NormBase)]
        self._tracked = [] if self._synchronises else layers
        self._streams = RandomStreams(recipe.seed, world.device)
        self.compression = rehearsed_compression(recipe, world, self.named)
        alone = "gradient_compression" if self.compression is not None else "activation_checkpointing"
        if self._synchronises and (self.compression is not None or recipe.activation_checkpointing):
            raise RecipeError(
                f"{alone} is rehearsed for one worker at a time, but with sync_batch_norm all workers pass through the "
                "network at once; omit one of them, or train on real workers"
            )
        # AdaScale and compression need each worker's own gradient, a step may compare the examples of a batch with each
        # other, and what is computed again in the backward pass would not draw each worker's random numbers.
        self._one_by_one = (
            isinstance(optimizer, AdaScale)
            or task.step is not None
            or self.compression is not None
            or recipe.activation_checkpointing
        )
        self._in_lock_step = False
        self._num_checked = 0

    def restart(self) -> None:
        """Forget the updates before; every virtual worker continues with the model's buffers."""
        super().restart()
        self._worker_buffers.reset_to_rank_0()

    def begin(self, step: int) -> None:
        """Begin a step, before its batch is read from the data set."""
        self._streams.begin(step)

    def reading_as(self, rank: int) -> AbstractContextManager[None]:
        """Return a context in which one worker's examples are read with its random numbers."""
        return self._streams.reading(rank)

    def synchronize_buffers(self) -> None:
        """Broadcast rank 0's buffers to all virtual workers; running statistics are averaged at each step already."""
        self._worker_buffers.reset_to_rank_0()

    def _gradients(self, batches: WorkerBatches, step: int, measure: bool) -> None:
        size = self._size
        if size == 1 and measure:
            super()._gradients(batches, step, measure)
            return
        adapts = isinstance(self.optimizer, AdaScale)
        meter = self._parts if adapts or measure else None
        statistics = RunningStatistics(self._tracked, size)
        local_batch = sum(part.num_examples for part in batches[0])
        with gathering_by(refuse) if size > 1 else gathering_alone():
            if self._num_checked < NUM_CHECKED:
                self._compare_ways(batches, step)
            if self._in_lock_step:
                self._lock_step_gradients(batches, step, measured=meter is not None)
                return
            weight = None if self._task.step is None else UpdateWeight(self._world)
            per_group = self._workers_at_once(local_batch)
            if per_group > 1 and not self._synchronises and not can_join(batches):
                per_group = 1
            if measure:
                # A group of workers counts as one part of the gradient; the estimate is as good, and no slower.
                per_group = min(per_group, -(-size // 2))
                self.source = "virtual-workers"
            for first in range(0, size, per_group):
                ranks = range(first, min(first + per_group, size))
                group = WorkerGroup(self._streams, ranks, step)
                with statistics.of(ranks), self._worker_buffers.of(first):
                    self._group_gradients(group, batches, step, weight)
                if self.compression is not None:
                    self.compression.take()
                elif meter is not None:
                    meter.take(len(ranks) * local_batch)
        statistics.write()
        if self.compression is not None:
            self.compression.finish()
        factor = 1.0 if weight is None else self._rescale(weight, size * local_batch, meter)
        if meter is not None:
            self._use_reading(meter.finish(), factor, measure)

    def _workers_at_once(self, local_batch: int) -> int:
        """Return how many workers pass through the network at once; synchronised batch norm needs all of them."""
        if self._synchronises:
            return self._size
        if self._one_by_one:
            return 1
        return max(1, min(self._size, GROUP_EXAMPLES // min(local_batch, self.micro_batch)))

    def _losses(self, group: WorkerGroup, batches: WorkerBatches, number: int) -> tuple[Losses, MicroBatch]:
        """Run one micro-batch of each worker through the network; return the losses and the joined micro-batch."""
        joined = join([batches[rank][number] for rank in group.ranks])
        if joined is None:  # only with sync_batch_norm, which needs all workers at once
            raise RecipeError(
                "with sync_batch_norm all rehearsed workers pass through the network at once, which needs batches of "
                "one shape on all of them; pad to a fixed length, or train on real workers"
            )
        with self._autocast, group:
            result: Losses = self._compute(joined.batch)
        return result, joined

    def _group_gradients(
        self, group: WorkerGroup, batches: WorkerBatches, step: int, weight: UpdateWeight | None
    ) -> None:
        parts = batches[group.ranks[0]]
        local = sum(part.num_examples for part in parts)
        shares = self._size if self.compression is None else 1  # what is compressed is a worker's own mean
        noise = [self._noise(rank, local, step) for rank in group.ranks]
        start = 0
        for number, part in enumerate(parts):
            result, joined = self._losses(group, batches, number)
            self._mark("forward")
            stop = start + part.num_examples
            mine = None if noise[0] is None else torch.cat([one[start:stop] for one in noise if one is not None])
            if weight is not None:
                weight.add(result)
            self._backward(with_noise(result, mine, 0, joined.num_examples).total() / (local * shares))
            self._mark("backward")
            self.totals.add(result, joined.batch, joined.num_examples)
            start = stop

    def _lock_step_gradients(self, batches: WorkerBatches, step: int, *, measured: bool) -> None:
        """Compute the gradients of steps that gather: those of one micro-batch of all workers in one graph."""
        if measured or self.compression is not None:
            raise RecipeError(
                "adascale, the noise scale and gradient_compression need the gradients of single workers, but steps "
                "that gather are rehearsed in one graph; leave them out, or train on real workers"
            )
        weight, size = UpdateWeight(self._world), self._size
        statistics = RunningStatistics(self._tracked, size)

        def run(rank: int) -> list[Losses]:
            self._streams.enter(rank, step)
            with statistics.of(range(rank, rank + 1)), self._autocast:
                return [self._compute(part.batch) for part in batches[rank]]

        before = {name: buffer.clone() for name, buffer in other_buffers(self._model).items()}
        results = run_in_lock_step(run, size)
        for name, buffer in other_buffers(self._model).items():
            if not torch.equal(buffer, before[name]):
                raise RecipeError(
                    f"the model changes its buffer {name} in training, and its step gathers: both together cannot be "
                    "rehearsed; train on real workers"
                )
        statistics.write()
        self._mark("forward")
        local = sum(part.num_examples for part in batches[0])
        total = []
        for rank, of_worker in enumerate(results):
            noise, start = self._noise(rank, local, step), 0
            for result, part in zip(of_worker, batches[rank], strict=True):
                weight.add(result)
                self.totals.add(result, part.batch, part.num_examples)
                total.append(with_noise(result, noise, start, part.num_examples).total())
                start += part.num_examples
        self._backward(torch.stack(total).sum() / (local * size))
        self._mark("backward")
        self._rescale(weight, local * size, None)

    # Can several workers pass through the network at once?

    def _compare_ways(self, batches: WorkerBatches, step: int) -> None:
        """Compute a group's first micro-batch at once and worker by worker; if they differ, never group again."""
        self._num_checked += 1
        if self._num_checked == 1:
            try:
                self._find_worker_buffers(batches, step)
            except GatherNeeded:
                self._in_lock_step, self._num_checked = True, NUM_CHECKED
                return
        ranks = range(self._workers_at_once(sum(part.num_examples for part in batches[0])))
        if len(ranks) < 2 or self._synchronises or not can_join(batches):
            return
        with buffers_restored(self._model.buffers()):
            together = self._loss_and_gradient(ranks, batches, step)
        apart = torch.zeros_like(together)
        for rank in ranks:
            with buffers_restored(self._model.buffers()):
                apart += self._loss_and_gradient(range(rank, rank + 1), batches, step)
        tolerance = _TOLERANCES.get(self._recipe.precision, _LOW_PRECISION_TOLERANCE)
        if not bool(torch.isfinite(together).all() & torch.isfinite(apart).all()):
            return  # the training diverges either way
        if float((together - apart).norm()) > tolerance * float(apart.norm()):
            self._one_by_one = True
            self.remarks.append(
                "the model or its loss draws random numbers or mixes examples in its own code: rehearsed workers "
                "run one at a time, which is exact and slower"
            )

    def _loss_and_gradient(self, ranks: range, batches: WorkerBatches, step: int) -> Tensor:
        """Return some workers' summed loss and its gradient, as one vector."""
        group = WorkerGroup(self._streams, ranks, step)
        with RunningStatistics(self._tracked, self._size).of(ranks):
            loss = self._losses(group, batches, 0)[0].total()
        slopes = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        parts = [loss, *(slope for slope in slopes if slope is not None)]
        return torch.cat([part.detach().cpu().double().flatten() for part in parts])

    def _find_worker_buffers(self, batches: WorkerBatches, step: int) -> None:
        """Find the buffers that a forward pass changes; each worker then gets its own copy and runs alone."""
        others = other_buffers(self._model)
        if not others and self._task.step is None:
            return
        before = {name: buffer.clone() for name, buffer in others.items()}
        with buffers_restored(self._model.buffers()):
            self._loss_and_gradient(range(1), batches, step)
            changed = {name: buffer for name, buffer in others.items() if not torch.equal(buffer, before[name])}
        if changed and not self._synchronises:
            self._worker_buffers = WorkerBuffers(changed, self._size)
            self._one_by_one = True
            self.remarks.append(
                f"the model changes its buffer {next(iter(changed))} in training: each rehearsed worker has its own "
                "copy, and the workers run one at a time"
            )
