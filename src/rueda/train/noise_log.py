"""The gradient noise scale along a training: measured every k updates, averaged, written, and followed by the batch.

Whatever an update's gradient is averaged from serves as the parts that are compared: real workers, rehearsed ones,
accumulated micro-batches, or, where there is nothing else, the two halves of a batch. A reading stays on its worker and
its device until a handful of them is added up over the workers in one small exchange: nothing waits for it.

Readings are added up, and the batch grows, only at updates whose number says so: whether a training was stopped and
resumed in between makes no difference.
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

UPDATES_AT_ONCE = 16
"""readings wait for each other for so many updates"""


class _Noted(NamedTuple):
    reading: Reading  # of this worker
    source: str
    state: TrainingState
    global_batch: int


class NoiseLog:
    """Takes an update's reading, and gives rows.

    Args:
        recipe: says how often, and how much is remembered.
        world: the workers; all must call :meth:`flush`.
        num_examples: in the training set.
        groups: names of the groups of parameters whose norms a reading has; empty: the whole model only.
    """

    def __init__(self, recipe: Recipe, world: World, num_examples: int, groups: tuple[str, ...] = ()) -> None:
        assert recipe.noise_scale_every is not None
        self._every, self._memory = recipe.noise_scale_every, recipe.noise_scale_memory
        self._at_once = max(1, UPDATES_AT_ONCE // self._every) * self._every
        self._world, self._num_examples = world, num_examples
        self._estimators = {name: Estimator(self._memory) for name in (None, *groups)}
        self._waiting: list[_Noted] = []
        self._num_decided = 0
        self.current: NoiseScale | None = None
        """of the whole model, after the last reading that was added up"""

    def wanted(self, step: int) -> bool:
        """Say whether to measure the update after so many."""
        return (step + 1) % self._every == 0

    def note(self, reading: Reading, source: str, state: TrainingState, global_batch: int) -> None:
        """Keep the reading of the update that led here."""
        self._waiting.append(_Noted(reading, source, replace(state), global_batch))

    def due(self, step: int) -> bool:
        """Say whether it is time to add up, after so many updates."""
        return step % self._at_once == 0

    def flush(self) -> list[NoiseRow]:
        """Add up over the workers what is waiting, and give a row for each reading and group."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        norms = torch.stack([noted.reading.norms for noted in waiting])  # [K, 2, G]
        norms = norms if norms.device.type == "mps" else norms.double()  # MPS has no float64
        rows: list[NoiseRow] = []
        for noted, (local, mean) in zip(waiting, self._world.all_reduce(norms).tolist(), strict=True):
            rows += self._observe(noted, local, mean)
        return rows

    def grown(self) -> bool:
        """Say once whether enough was measured since the last time for the batch to grow; all workers agree."""
        decisions = self._estimators[None].num_steps // self._memory
        before, self._num_decided = self._num_decided, decisions
        return decisions > before

    def state_dict(self) -> dict[str, Any]:
        """Give all that was averaged; flush first."""
        assert not self._waiting
        averages = [[name, estimator.state_dict()] for name, estimator in self._estimators.items()]
        current = None if self.current is None else asdict(self.current)
        return {"decided": self._num_decided, "averages": averages, "current": current}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on; a group that was not measured before starts anew."""
        self._num_decided = int(state["decided"])
        self.current = None if state["current"] is None else NoiseScale(**state["current"])
        for name, average in state["averages"]:
            if name in self._estimators:
                self._estimators[name].load_state_dict(average)

    def _observe(self, noted: _Noted, local: list[float], mean: list[float]) -> list[NoiseRow]:
        """Take one reading: the whole model is the sum of its groups."""
        rows, state = [], noted.state
        for number, (name, estimator) in enumerate(self._estimators.items()):
            a, b = (sum(local), sum(mean)) if name is None else (local[number - 1], mean[number - 1])
            if not estimator.observe(a, b, noted.reading.num_parts, noted.reading.examples_per_part):
                continue
            epochs = state.examples / self._num_examples
            found = estimator.estimate(step=state.step, epochs=epochs, source=noted.source, group=name)
            if name is None:
                self.current = found
            rows.append(
                NoiseRow(
                    epoch=state.epoch, examples=state.examples, seconds=state.seconds,
                    global_batch=noted.global_batch, noise=found,
                )
            )  # fmt: skip
        return rows
