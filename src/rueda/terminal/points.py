"""What the user sees while points are computed: a bar on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from rueda.terminal.bar import OnTerminal


class PointsProgress(OnTerminal):
    """Counts points; silent on all workers but the one that is told to speak."""

    def __init__(self, *, speak: bool, description: str, total: int, done: int = 0) -> None:
        super().__init__(speak=speak)
        self._description, self._total, self._first = description, total, done
        self._task: Any = None
        self._started = self._last = time.monotonic()

    def begin(self) -> None:
        """Show how many points are there already."""
        if self._bar is not None:
            self._task = self._bar.add_task(self._description, total=self._total, completed=self._first)
        elif self._speak and self._first:
            self._print(f"{self._first:,} of {self._total:,} points are there already")

    @property
    def due(self) -> bool:
        """True when something new would be shown."""
        return self._speak and time.monotonic() - self._last > (0.2 if self._bar is not None else 10.0)

    def show(self, done: int) -> None:
        """Show how many points there are."""
        self._last = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif self._speak:
            a_point = (self._last - self._started) / max(1, done - self._first)
            self._print(f"{done:,} of {self._total:,} points, about {a_point * (self._total - done):,.0f} s left")

    def _print(self, line: str) -> None:
        print(f"{self._description}: {line}", file=sys.stderr, flush=True)
