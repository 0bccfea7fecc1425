"""Rehearsal: N virtual workers in one process, with the numbers of N real ones.

What many workers do to the accuracy depends on what each of them computes, not on how many machines do it: which
examples it takes, which statistics its batch norm sees, which units its dropout drops, and that the gradients are
averaged. All of that can be done in turns:

- **The same shards.** One loader over the global batch gives worker r every N-th example from the r-th on: exactly what
  worker r's own loader would give it.
- **Batch norm per worker.** Each worker's examples are normalised by themselves. Running statistics are linear in
  what they have seen, so the mean over the workers is carried from step to step (of real workers the loop takes it
  when it is needed).
- **Dropout per worker.** Each worker draws from its own stream, a function of (seed, rank, step).
- **The same average.** Every worker's mean loss counts 1/N.

Workers are taken through the network in groups: one after the other where a worker's batch is large enough to keep the
processor busy, several at once where it is small. In a group, layers that mix or draw (batch norm, dropout) work
worker by worker; all others see one large batch. A model may also mix or draw in its own code, or its loss may. So the
first updates are computed both ways; where they differ, the workers go one after the other from then on.

The images/s of a rehearsal are those of this machine, never those of N.
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
from rueda.train.buffers import other_buffers
from rueda.train.layout import arrange
from rueda.train.update import Updater
from rueda.train.virtual_workers import Group, OwnBuffers, Statistics, Streams, put_back
from rueda.world import World

GROUP_EXAMPLES = 256
"""examples a CPU takes at once: more leaves the cache, fewer leave it idle"""
NUM_CHECKED = 3
"""updates that are computed together and one by one: a layer that starts at zero hides what lies before it"""
_TOLERANCES = {"float64": 1e-9, "float32": 1e-3}
_LOW_PRECISION_TOLERANCE = 0.05


class Rehearsal(Updater):
    """Makes the updates of ``recipe.workers`` workers from global batches; otherwise as :class:`Updater`."""

    def __init__(
        self, task: Task, recipe: Recipe, world: World, model: nn.Module, optimizer: Optimizer, groups: Groups
    ) -> None:
        super().__init__(task, recipe, world, model, optimizer, groups)
        self._size = recipe.workers
        self._joined = any(isinstance(layer, SyncBatchNorm) for layer in self._norms)
        if self._joined and isinstance(optimizer, AdaScale):
            raise RecipeError(
                "adascale compares the workers' gradients, and sync_batch_norm takes all workers through the network "
                "at once: they cannot be rehearsed together; leave one of them out, or train on real workers"
            )
        layers = [layer for layer in model.modules() if isinstance(layer, _NormBase)]
        self._tracked = [] if self._joined else layers
        self._streams = Streams(recipe.seed)
        self._own = OwnBuffers({}, self._size)
        self._one_by_one = isinstance(optimizer, AdaScale)  # it wants each worker's gradient
        self._num_checked = 0

    def begin(self, step: int) -> None:
        """Begin a step, before its batch is read."""
        self._streams.begin(step)

    def as_reader(self, rank: int) -> AbstractContextManager[None]:
        """Be one of the workers while its examples are read."""
        return self._streams.reading(rank)

    def synchronize_buffers(self) -> None:
        """Give rank 0's buffers to all virtual workers; their running statistics are averaged at each step already."""
        self._own.take_those_of_rank_0()

    def _gradients(self, inputs: Tensor, targets: Tensor, step: int, measure: bool) -> None:
        size = self._size
        if size == 1 and measure:
            super()._gradients(inputs, targets, step, measure)
            return
        adapts = isinstance(self._optimizer, AdaScale)
        meter = self._parts if adapts or measure else None
        statistics = Statistics(self._tracked, size)
        local_batch = targets.shape[0] // size
        if self._num_checked < NUM_CHECKED:
            self._check(inputs, targets, step)
        per_group = self._workers_at_once(local_batch)
        if measure:
            # Workers that go through together are one part: as good for the noise scale, and no slower.
            per_group = min(per_group, -(-size // 2))
            self.source = "virtual-workers"
        for first in range(0, size, per_group):
            ranks = range(first, min(first + per_group, size))
            group = Group(self._streams, ranks, step)
            with statistics.of(ranks), self._own.of(first):
                self._group_gradients(group, inputs, targets, step)
            if meter is not None:
                meter.take(len(ranks) * local_batch)
        statistics.write()
        if meter is not None:
            self._take(meter.finish(), measure)

    def _workers_at_once(self, local_batch: int) -> int:
        """Decide how many workers go through the network together; synchronised batch norm needs all of them."""
        if self._joined:
            return self._size
        if self._one_by_one:
            return 1
        return max(1, min(self._size, GROUP_EXAMPLES // min(local_batch, self.micro_batch)))

    def _losses(self, group: Group, inputs: Tensor, targets: Tensor, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Take a part of each worker's batch through the network: outputs, a loss an example, targets."""
        mine = [slice(rank, None, self._size) for rank in group.ranks]
        x = torch.cat([inputs[share][part] for share in mine])
        y = torch.cat([targets[share][part] for share in mine])
        with self._autocast, group:
            outputs = self._model(arrange(x, self._order))
            return outputs, self._task.losses(outputs, y), y

    def _group_gradients(self, group: Group, inputs: Tensor, targets: Tensor, step: int) -> None:
        total = targets.shape[0]
        local = total // self._size
        weights = [self._noise(rank, local, step) for rank in group.ranks]
        for start in range(0, local, self.micro_batch):
            part = slice(start, start + self.micro_batch)
            outputs, losses, y = self._losses(group, inputs, targets, part)
            weighted = losses if weights[0] is None else losses * torch.cat([w[part] for w in weights if w is not None])
            self.scaler.scale(weighted.sum() / total).backward()  # type: ignore[no-untyped-call]
            self.totals.add(losses, self._task.correct(outputs, y))

    # May workers go through together?

    def _check(self, inputs: Tensor, targets: Tensor, step: int) -> None:
        """Compute a group's first micro-batch together and one by one, beside the training, and draw conclusions."""
        self._num_checked += 1
        if self._num_checked == 1:
            self._find_own_buffers(inputs, targets, step)
        ranks = range(self._workers_at_once(targets.shape[0] // self._size))
        if len(ranks) < 2 or self._joined:
            return
        with put_back(self._model):
            together = self._slopes(ranks, inputs, targets, step)
        apart = torch.zeros_like(together)
        for rank in ranks:
            with put_back(self._model):
                apart += self._slopes(range(rank, rank + 1), inputs, targets, step)
        tolerance = _TOLERANCES.get(self._recipe.precision, _LOW_PRECISION_TOLERANCE)
        if not bool(torch.isfinite(together).all() & torch.isfinite(apart).all()):
            return  # it diverges either way
        if float((together - apart).norm()) > tolerance * float(apart.norm()):
            self._one_by_one = True
            self.remarks.append(
                "the model or its loss draws random numbers or mixes examples in its own code: rehearsed workers go "
                "through it one by one, which is exact and slower"
            )

    def _slopes(self, ranks: range, inputs: Tensor, targets: Tensor, step: int) -> Tensor:
        """Give the gradient of some workers' summed loss [n], and the loss."""
        group = Group(self._streams, ranks, step)
        with Statistics(self._tracked, self._size).of(ranks):
            loss = self._losses(group, inputs, targets, slice(0, self.micro_batch))[1].sum()
        slopes = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        parts = [loss, *(slope for slope in slopes if slope is not None)]
        return torch.cat([part.detach().double().flatten().cpu() for part in parts])

    def _find_own_buffers(self, inputs: Tensor, targets: Tensor, step: int) -> None:
        """Find the buffers that a pass changes: each worker then has its own, as real ones do, and goes alone."""
        others = other_buffers(self._model)
        if not others:
            return
        before = {name: buffer.clone() for name, buffer in others.items()}
        with put_back(self._model):
            self._slopes(range(1), inputs, targets, step)
            changed = {name: buffer for name, buffer in others.items() if not torch.equal(buffer, before[name])}
        if changed and not self._joined:
            self._own = OwnBuffers(changed, self._size)
            self._one_by_one = True
            self.remarks.append(
                f"the model changes its buffer {next(iter(changed))} while it trains: every rehearsed worker has its "
                "own, and they go through the model one by one"
            )
