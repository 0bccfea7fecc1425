"""Time the stages of a training step: waiting for data, forward pass, backward pass, optimizer.

A GPU computes asynchronously, so a stage ends only when the device has finished it: the clock synchronises with the
device at the end of each stage. This prevents the stages from overlapping, so the whole step is timed separately,
without the clock (:mod:`rueda.measure.steps`), and may be shorter than the sum of its stages.
"""

from __future__ import annotations

import time

import torch

from rueda.world.device import wait_for

STAGES = ("data", "forward", "backward", "optimizer")


class StageClock:
    """Accumulates the seconds of each stage; when it is off, it does nothing and does not synchronise.

    >>> clock = StageClock(torch.device("cpu"))
    >>> clock.begin()
    >>> clock.mark("data")
    >>> sorted(clock.seconds) == sorted(STAGES), clock.seconds["data"] > 0, clock.seconds["forward"]
    (True, True, 0.0)
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on = True
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._last = 0.0

    def reset(self) -> None:
        """Set the accumulated seconds to zero."""
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def begin(self) -> None:
        """Start the first stage of a step."""
        if self.on:
            wait_for(self.device)
            self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        """End a stage, which lasted since the previous call of ``begin`` or ``mark``."""
        if self.on:
            wait_for(self.device)
            now = time.perf_counter()
            self.seconds[stage] += now - self._last
            self._last = now
