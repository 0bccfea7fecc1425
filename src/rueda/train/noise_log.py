"""The gradient noise scale during training: measured every k updates, averaged, and written as rows.

The estimate compares the gradients whose average is an update's gradient: those of real workers, of rehearsed workers,
of accumulated micro-batches, or otherwise of the two halves of a batch. Their norms (a *reading*) stay on the device
until several readings are summed over the workers in one small all-reduce, so no step waits for them.

Readings are summed, and the batch grows, only at fixed step numbers, so a training that was stopped and resumed
yields the same numbers as one that was not.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch

from rueda.optim.meters import Reading
from rueda.optim.noise_scale import Estimator
from rueda.records import Recipe
from rueda.records.profile import NoiseScale
from rueda.records.run import NoiseRow
from rueda.train.state import TrainingState
from rueda.world import World
from rueda.world.device import widest_dtype

UPDATES_AT_ONCE = 16
"""readings of this many updates are summed over the workers in one all-reduce"""


class _PendingReading(NamedTuple):
    reading: Reading  # of this worker
    source: str
    state: TrainingState
    global_batch: int


class NoiseLog:
    """Collects the readings of updates and turns them into rows.

    Args:
        recipe: how often to measure, and the memory of the moving averages.
        world: the workers; all must call :meth:`flush`.
        num_examples: size of the training set.
        groups: names of the parameter groups whose norms a reading holds; empty if only the whole model is measured.
    """

    def __init__(self, recipe: Recipe, world: World, num_examples: int, groups: tuple[str, ...] = ()) -> None:
        assert recipe.noise_scale_every is not None
        self._every, self._memory = recipe.noise_scale_every, recipe.noise_scale_memory
        self._at_once = max(1, UPDATES_AT_ONCE // self._every) * self._every
        self._world, self._num_examples = world, num_examples
        self._estimators = {name: Estimator(self._memory) for name in (None, *groups)}
        self._waiting: list[_PendingReading] = []
        self._num_decided = 0
        self.current: NoiseScale | None = None
        """the noise scale of the whole model after the last summed reading"""

    def wanted(self, step: int) -> bool:
        """Return whether the next update is measured, given that ``step`` updates have been made."""
        return (step + 1) % self._every == 0

    def note(self, reading: Reading, source: str, state: TrainingState, global_batch: int) -> None:
        """Keep the reading of the last update until the next :meth:`flush`."""
        self._waiting.append(_PendingReading(reading, source, replace(state), global_batch))

    def due(self, step: int) -> bool:
        """Return whether readings are summed after ``step`` updates."""
        return step % self._at_once == 0

    def flush(self) -> list[NoiseRow]:
        """Sum the pending readings over the workers, and return a row for each reading and group."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        norms = torch.stack([pending.reading.norms for pending in waiting])  # [K, 2, G]
        norms = norms.to(widest_dtype(norms.device))
        rows: list[NoiseRow] = []
        for pending, (local, mean) in zip(waiting, self._world.all_reduce(norms).tolist(), strict=True):
            rows += self._observe(pending, local, mean)
        return rows

    def grown(self) -> bool:
        """Return True once for every ``noise_scale_memory`` readings, when all workers may enlarge the batch."""
        decisions = self._estimators[None].num_steps // self._memory
        before, self._num_decided = self._num_decided, decisions
        return decisions > before

    def state_dict(self) -> dict[str, Any]:
        """Return the moving averages; :meth:`flush` must have been called."""
        assert not self._waiting
        averages = [[name, estimator.state_dict()] for name, estimator in self._estimators.items()]
        current = None if self.current is None else asdict(self.current)
        return {"decided": self._num_decided, "averages": averages, "current": current}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the moving averages; a group that the state does not hold starts from zero."""
        self._num_decided = int(state["decided"])
        self.current = None if state["current"] is None else NoiseScale(**state["current"])
        for name, average in state["averages"]:
            if name in self._estimators:
                self._estimators[name].load_state_dict(average)

    def _observe(self, pending: _PendingReading, local: list[float], mean: list[float]) -> list[NoiseRow]:
        """Add one reading to the estimators; the norms of the whole model are the sums over its groups."""
        rows, state = [], pending.state
        for number, (name, estimator) in enumerate(self._estimators.items()):
            a, b = (sum(local), sum(mean)) if name is None else (local[number - 1], mean[number - 1])
            if not estimator.observe(a, b, pending.reading.num_parts, pending.reading.examples_per_part):
                continue
            epochs = state.examples / self._num_examples
            found = estimator.estimate(step=state.step, epochs=epochs, source=pending.source, group=name)
            if name is None:
                self.current = found
            rows.append(
                NoiseRow(
                    epoch=state.epoch, examples=state.examples, seconds=state.seconds,
                    global_batch=pending.global_batch, noise=found,
                )
            )  # fmt: skip
        return rows
