"""Progress while many points, such as those of a loss landscape, are computed: a bar, or a line every ten seconds."""

from __future__ import annotations

import time

from rueda.terminal.bar import ProgressDisplay


class PointsProgress(ProgressDisplay):
    """Shows how many points, or other things, have been computed; a worker without ``speak`` shows nothing."""

    def __init__(self, *, speak: bool, description: str, total: int, done: int = 0, noun: str = "points") -> None:
        super().__init__(speak=speak)
        self._description, self._total, self._first, self._noun = description, total, done, noun
        self._started = time.monotonic()

    def begin(self) -> None:
        """Show how many points an earlier run computed."""
        if self._bar is not None:
            self._task = self._bar.add_task(self._description, total=self._total, completed=self._first)
        elif self._first:
            self.line(f"{self._description}: {self._first:,} of {self._total:,} {self._noun} are already computed")

    def show(self, done: int) -> None:
        """Show that ``done`` points have been computed."""
        self._last = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        else:
            left = (self._last - self._started) / max(1, done - self._first) * (self._total - done)
            self.line(f"{self._description}: {done:,} of {self._total:,} {self._noun}, about {left:,.0f} s left")
