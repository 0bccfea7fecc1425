"""What the user sees while it is measured: a bar over the phases on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class MeasureProgress:
    """Shows the phases; silent unless told to speak."""

    def __init__(self, *, speak: bool, phases: int) -> None:
        self._speak, self._phases, self._done = speak, phases, 0
        self._bar: Any = None
        self._task: Any = None
        self._said = ""

    def __enter__(self) -> MeasureProgress:
        if self._speak and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(),
                TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(), console=Console(stderr=True),
                transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=self._phases)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def phase(self, text: str) -> None:
        """Begin a phase."""
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=self._done)
        elif self._speak:
            print(f"{self._done + 1}/{self._phases} {text}", file=sys.stderr, flush=True)
        self._done += 1

    def tell(self, text: str) -> None:
        """Say what the phase is at; only a bar shows it."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
