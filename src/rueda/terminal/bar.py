"""One bar on a terminal: what every progress of the project begins and ends with.

A worker's own output is a pipe to its launcher, which names the user's terminal in ``RUEDA_TERMINAL``.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

Own = TypeVar("Own", bound="OnTerminal")


class OnTerminal:
    """A progress that is a bar on a terminal, and something else elsewhere; silent unless told to speak.

    A subclass names its ``COLUMNS``: ``bar``, ``spinner``, ``elapsed``, ``remaining``, or a text with fields, and says
    in :meth:`begin` what there is at the start. ``_bar`` is rich's, or None where there is no terminal; ``_task``
    is the line of it that a subclass shows.
    """

    BAR_SECONDS = 0.2
    """between two states of the bar"""
    LINE_SECONDS = 10.0
    """between two plain lines where there is no bar"""
    COLUMNS: tuple[str, ...] = ("{task.description}", "bar", "{task.completed}/{task.total}", "remaining")

    def __init__(self, *, speak: bool) -> None:
        self._speak = speak
        self._bar: Any = None
        self._task: Any = None
        self._terminal = ExitStack()
        self._last = time.monotonic()

    def begin(self) -> None:
        """Show what there is before the first step."""

    @property
    def due(self) -> bool:
        """True when something new would be shown: only then is it worth computing."""
        wait = self.LINE_SECONDS if self._bar is None else self.BAR_SECONDS
        return self._speak and time.monotonic() - self._last > wait

    def say(self, line: str) -> None:
        """Print a line: above the bar, or by itself."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            self.line(line)

    def line(self, line: str) -> None:
        """Print a plain line where there is no bar; what is due next comes later."""
        if self._speak and self._bar is None:
            print(line, file=sys.stderr, flush=True)
            self._last = time.monotonic()

    def start(self) -> None:
        """Start the bar, if there is a terminal."""
        name = os.environ.get("RUEDA_TERMINAL")
        if self._speak and (name or sys.stderr.isatty()):
            from rich import progress
            from rich.console import Console

            kinds: dict[str, type[progress.ProgressColumn]] = {
                "bar": progress.BarColumn,
                "spinner": progress.SpinnerColumn,
                "elapsed": progress.TimeElapsedColumn,
                "remaining": progress.TimeRemainingColumn,
            }
            columns = [kinds[one]() if one in kinds else progress.TextColumn(one, markup=False) for one in self.COLUMNS]
            file = self._terminal.enter_context(open(name, "w")) if name else None  # noqa: SIM115 - ExitStack
            console = Console(file=file, force_terminal=True) if file else Console(stderr=True)
            self._bar = progress.Progress(*columns, console=console, transient=True)
            self._bar.start()

    def __enter__(self: Own) -> Own:
        self.start()
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._terminal.close()
