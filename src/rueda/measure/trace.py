"""Note when each stage of a training step begins and ends, for a timeline of one step.

:class:`~rueda.measure.clock.StageClock` sums the seconds of each stage over many steps; a trace keeps the moments.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from rueda.world.device import wait_for


@dataclass(frozen=True)
class StageSpan:
    """A stage of a step: its name, and its begin and end in seconds.

    Times are those of :func:`time.perf_counter`, which all processes of a Linux machine share, or relative to the
    begin of the step.
    """

    stage: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long the stage lasted."""
        return self.end - self.begin

    def since(self, start: float) -> StageSpan:
        """Return the span with times relative to ``start``."""
        return StageSpan(self.stage, self.begin - start, self.end - start)


class StageTrace:
    """Notes the begin and the end of every stage; it has the methods of a ``StepTimer``.

    >>> trace = StageTrace(torch.device("cpu"))
    >>> trace.begin()
    >>> trace.mark("forward")
    >>> trace.mark("backward")
    >>> [span.stage for span in trace.spans], trace.spans[0].end == trace.spans[1].begin
    (['forward', 'backward'], True)
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spans: list[StageSpan] = []
        self._last = 0.0

    def begin(self) -> None:
        """Start a step: forget the spans of the one before."""
        wait_for(self.device)
        self.spans = []
        self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        """End a stage, which lasted since the previous call; a stage that is marked twice in a row is one span."""
        wait_for(self.device)
        now = time.perf_counter()
        if self.spans and self.spans[-1].stage == stage:
            self.spans[-1] = StageSpan(stage, self.spans[-1].begin, now)
        else:
            self.spans.append(StageSpan(stage, self._last, now))
        self._last = now
