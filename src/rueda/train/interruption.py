"""Ctrl-C and SIGTERM while training: finish the step, save, and leave; all workers at the same step.

A signal reaches the workers at different moments, and one that left alone would leave the others waiting in a
collective. So a signal only raises a flag, and the workers compare flags about once a second.
"""

from __future__ import annotations

import math
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import torch

from rueda.world import World

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Watches for signals inside a ``with`` block; :meth:`agreed` says whether all workers shall stop now."""

    def __init__(self, world: World) -> None:
        self.signal: int | None = None
        self._world = world
        self._old: dict[int, Any] = {}
        self._interval = 1
        self._since = 0

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a script's background want it
                    self._old[number] = signal.signal(number, self._raise_flag)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _raise_flag(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:  # the second Ctrl-C does not wait
            signal.signal(number, self._old[number])
            signal.raise_signal(number)
        self.signal = number

    def agreed(self, seconds_per_step: float) -> bool:
        """Say, after each step and on every worker, whether to stop; compares flags about once a second."""
        if self._world.size == 1:
            return self.signal is not None
        self._since += 1
        if self._since < self._interval:
            return False
        self._since = 0
        told = torch.tensor([float(self.signal or 0), seconds_per_step], device=self._world.device)
        number, slowest = self._world.all_reduce(told, "max").tolist()
        # The slowest worker's time gives all of them the same interval.
        self._interval = max(1, min(1000, math.ceil(1.0 / max(slowest, 1e-6))))
        if number:
            self.signal = int(number)
        return bool(number)
