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
time; where the gradients differ, the workers run one at a time from then on.

The images/s of a rehearsal are those of this machine, never those of N machines.
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
from rueda.train.layout import to_memory_format
from rueda.train.update import Updater
from rueda.train.virtual_workers import RandomStreams, RunningStatistics, WorkerBuffers, WorkerGroup
from rueda.world import World

GROUP_EXAMPLES = 256
"""examples per forward pass on a CPU: more exceed the cache, fewer leave the processor idle"""
NUM_CHECKED = 3
"""number of updates computed both ways; in the first one, a layer initialised to zero hides differences before it"""
_TOLERANCES = {"float64": 1e-9, "float32": 1e-3}
_LOW_PRECISION_TOLERANCE = 0.05


class Rehearsal(Updater):
    """Computes the updates of ``recipe.workers`` virtual workers from global batches; see :class:`Updater`."""

    def __init__(
        self, task: Task, recipe: Recipe, world: World, model: nn.Module, optimizer: Optimizer, groups: Groups
    ) -> None:
        self._worker_buffers = WorkerBuffers({}, recipe.workers)
        super().__init__(task, recipe, world, model, optimizer, groups)
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
        self._one_by_one = isinstance(optimizer, AdaScale)  # it needs each worker's own gradient
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

    def _gradients(self, inputs: Tensor, targets: Tensor, step: int, measure: bool) -> None:
        size = self._size
        if size == 1 and measure:
            super()._gradients(inputs, targets, step, measure)
            return
        adapts = isinstance(self._optimizer, AdaScale)
        meter = self._parts if adapts or measure else None
        statistics = RunningStatistics(self._tracked, size)
        local_batch = targets.shape[0] // size
        if self._num_checked < NUM_CHECKED:
            self._compare_ways(inputs, targets, step)
        per_group = self._workers_at_once(local_batch)
        if measure:
            # A group of workers counts as one part of the gradient; the estimate is as good, and no slower.
            per_group = min(per_group, -(-size // 2))
            self.source = "virtual-workers"
        for first in range(0, size, per_group):
            ranks = range(first, min(first + per_group, size))
            group = WorkerGroup(self._streams, ranks, step)
            with statistics.of(ranks), self._worker_buffers.of(first):
                self._group_gradients(group, inputs, targets, step)
            if meter is not None:
                meter.take(len(ranks) * local_batch)
        statistics.write()
        if meter is not None:
            self._use_reading(meter.finish(), measure)

    def _workers_at_once(self, local_batch: int) -> int:
        """Return how many workers pass through the network at once; synchronised batch norm needs all of them."""
        if self._synchronises:
            return self._size
        if self._one_by_one:
            return 1
        return max(1, min(self._size, GROUP_EXAMPLES // min(local_batch, self.micro_batch)))

    def _losses(
        self, group: WorkerGroup, inputs: Tensor, targets: Tensor, part: slice
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run a part of each worker's batch through the network; return outputs, losses per example, and targets."""
        mine = [slice(rank, None, self._size) for rank in group.ranks]
        x = torch.cat([inputs[share][part] for share in mine])
        y = torch.cat([targets[share][part] for share in mine])
        with self._autocast, group:
            outputs = self._model(to_memory_format(x, self._memory_format))
            return outputs, self._task.losses(outputs, y), y

    def _group_gradients(self, group: WorkerGroup, inputs: Tensor, targets: Tensor, step: int) -> None:
        total = targets.shape[0]
        local = total // self._size
        weights = [self._noise(rank, local, step) for rank in group.ranks]
        for start in range(0, local, self.micro_batch):
            part = slice(start, start + self.micro_batch)
            outputs, losses, y = self._losses(group, inputs, targets, part)
            weighted = losses if weights[0] is None else losses * torch.cat([w[part] for w in weights if w is not None])
            self.scaler.scale(weighted.sum() / total).backward()  # type: ignore[no-untyped-call]
            self.totals.add(Losses(losses, None, outputs), (None, y), losses.shape[0])

    # Can several workers pass through the network at once?

    def _compare_ways(self, inputs: Tensor, targets: Tensor, step: int) -> None:
        """Compute a group's first micro-batch at once and worker by worker; if they differ, never group again."""
        self._num_checked += 1
        if self._num_checked == 1:
            self._find_worker_buffers(inputs, targets, step)
        ranks = range(self._workers_at_once(targets.shape[0] // self._size))
        if len(ranks) < 2 or self._synchronises:
            return
        with buffers_restored(self._model.buffers()):
            together = self._loss_and_gradient(ranks, inputs, targets, step)
        apart = torch.zeros_like(together)
        for rank in ranks:
            with buffers_restored(self._model.buffers()):
                apart += self._loss_and_gradient(range(rank, rank + 1), inputs, targets, step)
        tolerance = _TOLERANCES.get(self._recipe.precision, _LOW_PRECISION_TOLERANCE)
        if not bool(torch.isfinite(together).all() & torch.isfinite(apart).all()):
            return  # the training diverges either way
        if float((together - apart).norm()) > tolerance * float(apart.norm()):
            self._one_by_one = True
            self.remarks.append(
                "the model or its loss draws random numbers or mixes examples in its own code: rehearsed workers "
                "run one at a time, which is exact and slower"
            )

    def _loss_and_gradient(self, ranks: range, inputs: Tensor, targets: Tensor, step: int) -> Tensor:
        """Return some workers' summed loss and its gradient, as one vector."""
        group = WorkerGroup(self._streams, ranks, step)
        with RunningStatistics(self._tracked, self._size).of(ranks):
            loss = self._losses(group, inputs, targets, slice(0, self.micro_batch))[1].sum()
        slopes = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        parts = [loss, *(slope for slope in slopes if slope is not None)]
        return torch.cat([part.detach().cpu().double().flatten() for part in parts])

    def _find_worker_buffers(self, inputs: Tensor, targets: Tensor, step: int) -> None:
        """Find the buffers that a forward pass changes; each worker then gets its own copy and runs alone."""
        others = other_buffers(self._model)
        if not others:
            return
        before = {name: buffer.clone() for name, buffer in others.items()}
        with buffers_restored(self._model.buffers()):
            self._loss_and_gradient(range(1), inputs, targets, step)
            changed = {name: buffer for name, buffer in others.items() if not torch.equal(buffer, before[name])}
        if changed and not self._synchronises:
            self._worker_buffers = WorkerBuffers(changed, self._size)
            self._one_by_one = True
            self.remarks.append(
                f"the model changes its buffer {next(iter(changed))} in training: each rehearsed worker has its own "
                "copy, and the workers run one at a time"
            )
