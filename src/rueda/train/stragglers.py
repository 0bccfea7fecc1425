"""Finds a worker that is slower than the others: which one, by how much, and since when.

Data-parallel workers wait for the slowest of them at every update, so all have the same time per step, and none of them
can tell from its own step who is late. What differs is the time in which each of them *computes*. :class:`ComputeClock`
adds up the parts of a step in which a worker waits for nobody: reading the batch, the forward pass, the backward pass
until the gradient of the first layer is there (from then on only the exchange of gradients is awaited), and the
optimizer. The means over the steps between two comparisons are gathered, and a rank is a straggler if its mean is
:data:`SLOW` times the median of the others in two comparisons in a row.

A step that gathers tensors of all workers (:func:`rueda.gather`), or synchronised batch norm, waits within its forward
pass: there every worker is as slow as the slowest, and none is named. On a GPU nothing is measured: a host that only
queues kernels does not know how long they take.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

SLOW = 1.25
"""how many times the median of the others a straggler needs for an update"""
LEAST_SECONDS = 1e-3
"""a straggler is slower by at least this much; what is less is the noise of a clock and a scheduler"""
LEAST_STEPS = 10
"""a mean over fewer steps is not judged"""


class ComputeClock:
    """Adds up the seconds in which this worker computes, as the timer of :meth:`rueda.train.training.Training.step`.

    Args:
        model: the model; its first parameter that is trained tells when the backward pass is nearly over.
    """

    def __init__(self, model: nn.Module) -> None:
        self._since = self._gradient_at = 0.0
        self._seconds, self._num_steps = 0.0, 0
        first = next((one for one in model.parameters() if one.requires_grad), None)
        self._hook = None if first is None else first.register_hook(self._note_gradient)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Start a step."""
        self._num_steps += 1
        self._since = time.perf_counter()

    def mark(self, stage: str) -> None:
        """End a stage; of ``backward`` only the time until the first layer's gradient counts, the rest is waiting."""
        now = time.perf_counter()
        self._seconds += max(0.0, (self._gradient_at if stage == "backward" else now) - self._since)
        self._since = now

    def take(self, least: int = 0) -> tuple[int, float]:
        """Return the number of steps and their mean seconds since the last call; zeros if they are not ``least``."""
        if self._num_steps < least:
            return 0, 0.0
        num_steps, seconds = self._num_steps, self._seconds
        self._num_steps, self._seconds = 0, 0.0
        return num_steps, seconds / max(1, num_steps)

    def close(self) -> None:
        """Remove the hook from the model."""
        if self._hook is not None:
            self._hook.remove()

    def _note_gradient(self, gradient: Tensor) -> None:
        self._gradient_at = time.perf_counter()


class Straggler(NamedTuple):
    """A rank that has become slow, or keeps up again."""

    rank: int
    since_step: int
    """the update after which it became so"""
    factor: float
    """its time for an update over the median of the others"""
    excess_seconds: float
    """its time for an update minus that median"""
    slow: bool
    """False: it keeps up again"""


class StragglerWatch:
    """Judges the workers' seconds per update, the same on all workers; tells of each change once.

    >>> watch = StragglerWatch()
    >>> watch.take(100, 100, [0.010, 0.020, 0.011]), watch.take(200, 100, [0.010, 0.021, 0.011])[0].since_step
    ([], 0)
    >>> watch.take(300, 100, [0.010, 0.010, 0.011]), watch.take(400, 100, [0.010, 0.010, 0.011])[0].slow
    ([], False)
    """

    def __init__(self) -> None:
        self._changing: dict[int, int] = {}
        """ranks that the last comparison judged otherwise than before: the update after which that began"""
        self._slow: set[int] = set()

    def take(self, step: int, num_steps: int, seconds: Sequence[float]) -> list[Straggler]:
        """Judge the mean seconds of all ranks over the last ``num_steps`` updates, up to ``step``."""
        if num_steps < LEAST_STEPS or len(seconds) < 2:
            return []
        found = []
        for rank, own in enumerate(seconds):
            others = statistics.median(value for other, value in enumerate(seconds) if other != rank)
            slow = own > SLOW * others and own - others > LEAST_SECONDS
            if slow == (rank in self._slow):
                self._changing.pop(rank, None)
            elif rank in self._changing:
                self._slow ^= {rank}
                found.append(Straggler(rank, self._changing.pop(rank), own / max(others, 1e-9), own - others, slow))
            else:
                self._changing[rank] = step - num_steps
        return found
