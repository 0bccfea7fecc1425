"""A clock for the stages of a step: waiting for data, forward, backward, optimizer.

A GPU computes while Python has gone on, so a stage ends when the device has finished it: the clock waits for the
device at every mark. That also takes away what stages gain by running into each other; the whole step is therefore
timed without marks (:mod:`rueda.measure.steps`), and may be shorter than the sum of its stages.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from rueda.tasks import Task

STAGES = ("data", "forward", "backward", "optimizer")


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was asked for; a CPU has done it already."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class StageClock:
    """Adds up the seconds of each stage; off, it costs nothing and waits for nothing.

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
        """Begin to add up anew."""
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def begin(self) -> None:
        """Start the step's first stage."""
        if self.on:
            wait_for(self.device)
            self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        """End a stage: all the time since the last mark is its."""
        if self.on:
            wait_for(self.device)
            now = time.perf_counter()
            self.seconds[stage] += now - self._last
            self._last = now


def with_clock(task: Task, clock: StageClock) -> Task:
    """Give the task whose loss and metric tell the clock where a step is.

    An update calls the loss when the network has answered and the metric when the gradients are there. So the steps
    that are timed are those of ``rueda train``, to the last line.
    """

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = task.loss(outputs, targets)
        clock.mark("forward")
        return losses

    def metric(outputs: Tensor, targets: Tensor) -> Tensor:
        clock.mark("backward")
        if task.metric is None:
            return torch.zeros(targets.shape[0], dtype=torch.int64, device=outputs.device)
        return task.metric(outputs, targets)

    return replace(task, loss=loss, metric=metric)
