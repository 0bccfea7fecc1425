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
worker by worker; all others see one large batch.

The images/s of a rehearsal are those of this machine, never those of N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rueda.nn import SyncBatchNorm
from rueda.nn.convert import BatchNorm
from rueda.optim import AdaScale
from rueda.optim.meters import Groups
from rueda.optim.noise import noise_weights
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train.layout import arrange
from rueda.train.update import Updater
from rueda.world import World
from rueda.world.seeds import seed_worker

GROUP_EXAMPLES = 256
"""examples a CPU takes at once: more leaves the cache, fewer leave it idle"""

_RANDOM = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


class Rehearsal(Updater):
    """Makes the updates of ``recipe.workers`` workers from global batches; otherwise as :class:`Updater`."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(task, recipe, world, model, optimizer, groups)
        self._size = recipe.workers
        self._joined = any(isinstance(layer, SyncBatchNorm) for layer in self._norms)

    def _gradients(self, inputs: Tensor, targets: Tensor, step: int, measure: bool) -> None:
        size = self._size
        if size == 1 and measure:
            super()._gradients(inputs, targets, step, measure)
            return
        adapts = isinstance(self._optimizer, AdaScale)
        meter = self._parts if adapts or measure else None
        statistics = _Statistics([] if self._joined else self._norms, size)
        local_batch = targets.shape[0] // size
        per_group = 1 if adapts else self._workers_at_once(local_batch)
        if measure:
            # Workers that go through together are one part: as good for the noise scale, and no slower.
            per_group = min(per_group, -(-size // 2))
            self.source = "virtual-workers"
        for first in range(0, size, per_group):
            ranks = range(first, min(first + per_group, size))
            group = _Group(self._recipe.seed, ranks, step)
            with statistics.of(ranks):
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
        return max(1, min(self._size, GROUP_EXAMPLES // min(local_batch, self.micro_batch)))

    def _group_gradients(self, group: _Group, inputs: Tensor, targets: Tensor, step: int) -> None:
        total = targets.shape[0]
        local = total // self._size
        weights = [self._noise_of(rank, local, step) for rank in group.ranks]
        for start in range(0, local, self.micro_batch):
            part = slice(start, start + self.micro_batch)
            mine = [slice(rank, None, self._size) for rank in group.ranks]
            x = torch.cat([inputs[share][part] for share in mine])
            y = torch.cat([targets[share][part] for share in mine])
            with self._autocast, group:
                outputs = self._model(arrange(x, self._order))
                losses = self._task.losses(outputs, y)
            weighted = losses if weights[0] is None else losses * torch.cat([w[part] for w in weights if w is not None])
            self.scaler.scale(weighted.sum() / total).backward()  # type: ignore[no-untyped-call]
            self.totals.add(losses, self._task.correct(outputs, y))

    def _noise_of(self, rank: int, num_examples: int, step: int) -> Tensor | None:
        if self.sigma == 0:
            return None
        device = self._world.device
        return noise_weights(num_examples, self.sigma, seed=self._recipe.seed, step=step, rank=rank, device=device)


class _Group(TorchFunctionMode):
    """Lets every worker of a group draw its dropout masks from its own stream."""

    def __init__(self, seed: int, ranks: range, step: int) -> None:
        super().__init__()
        self.ranks = ranks
        self._states: list[Tensor] = []
        for rank in ranks:
            seed_worker(seed, rank, step)
            self._states.append(torch.get_rng_state())

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function not in _RANDOM or len(self._states) == 1:
            return function(*args, **options)
        parts = []
        for number, part in enumerate(args[0].chunk(len(self._states))):
            torch.set_rng_state(self._states[number])
            parts.append(function(part, *args[1:], **options))
            self._states[number] = torch.get_rng_state()
        return torch.cat(parts)


class _Statistics:
    """The running batch-norm statistics: each worker updates its own copy, the mean is what stays."""

    def __init__(self, layers: list[BatchNorm], size: int) -> None:
        self._size = size
        self._sums = {layer: {name: torch.zeros_like(buffer) for name, buffer in _own(layer)} for layer in layers}

    @contextmanager
    def of(self, ranks: range) -> Iterator[None]:
        """Let the batch-norm layers work worker by worker."""
        with ExitStack() as stack:
            copies = {layer: stack.enter_context(_by_worker(layer, len(ranks))) for layer in self._sums}
            yield
        for layer, workers in copies.items():
            for buffers in workers:
                for name, buffer in buffers.items():
                    self._sums[layer][name] += buffer

    def write(self) -> None:
        """Store the mean over all workers."""
        for layer, sums in self._sums.items():
            for name, buffer in _own(layer):
                mean = sums[name] / self._size
                buffer.copy_(mean if buffer.is_floating_point() else mean.round())


def _own(layer: BatchNorm) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in layer._buffers.items() if buffer is not None]


@contextmanager
def _by_worker(layer: BatchNorm, size: int) -> Iterator[list[dict[str, Tensor]]]:
    """Normalise each worker's part of the batch by itself, with running statistics of its own, which are given."""
    original, buffers = layer.forward, dict(layer._buffers)
    copies = [{name: buffer.clone() for name, buffer in _own(layer)} for _ in range(size)]

    def forward(inputs: Tensor) -> Tensor:
        outputs = []
        for copy, part in zip(copies, inputs.chunk(size), strict=True):
            layer._buffers.update(copy)  # not copied into: the backward pass wants them unchanged
            outputs.append(original(part))
        return outputs[0] if size == 1 else torch.cat(outputs)

    layer.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield copies
    finally:
        layer.__dict__.pop("forward", None)
        layer._buffers.update(buffers)
