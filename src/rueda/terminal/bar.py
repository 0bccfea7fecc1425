"""The base class of all progress displays: a bar on a terminal, plain lines elsewhere.

A worker's output is a pipe to its launcher, which names the user's terminal in the variable ``RUEDA_TERMINAL``.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

Display = TypeVar("Display", bound="ProgressDisplay")


class ProgressDisplay:
    """Shows progress as a bar on a terminal and as lines elsewhere; without ``speak`` it shows nothing.

    A subclass lists its ``COLUMNS`` (``bar``, ``spinner``, ``elapsed``, ``remaining``, or a format string of rich) and
    shows the initial state in :meth:`begin`. ``_bar`` is rich's ``Progress``, or None where there is no terminal;
    ``_task`` is the task in it that the subclass updates.
    """

    BAR_SECONDS = 0.2
    """seconds between two updates of the bar"""
    LINE_SECONDS = 10.0
    """seconds between two lines where there is no bar"""
    COLUMNS: tuple[str, ...] = ("{task.description}", "bar", "{task.completed}/{task.total}", "remaining")

    def __init__(self, *, speak: bool) -> None:
        self._speak = speak
        self._bar: Any = None
        self._task: Any = None
        self._terminal = ExitStack()
        self._last = time.monotonic()

    def begin(self) -> None:
        """Show the initial state."""

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last update to compute and show a new one."""
        wait = self.LINE_SECONDS if self._bar is None else self.BAR_SECONDS
        return self._speak and time.monotonic() - self._last > wait

    def say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self.line(line)

    def announce(self, line: str) -> None:
        """Print a line above the bar, or without a bar on standard error, even if nothing else is to be shown."""
        with suppress(OSError, ValueError):  # the terminal has been closed
            if self._bar is not None:
                self.say(line)
            else:
                print(line, file=sys.stderr, flush=True)

    def line(self, line: str) -> None:
        """Print a line if there is no bar, and wait ``LINE_SECONDS`` until the next one is :attr:`due`."""
        if self._speak and self._bar is None:
            print(line, file=sys.stderr, flush=True)
            self._last = time.monotonic()

    def start(self) -> None:
        """Start the bar if standard error, or the terminal named by the launcher, can show one."""
        name = os.environ.get("RUEDA_TERMINAL")
        if self._speak and (name or sys.stderr.isatty()) and os.environ.get("TERM") != "dumb":
            from rich import progress
            from rich.console import Console
            from rich.table import Column

            kinds: dict[str, type[progress.ProgressColumn]] = {
                "spinner": progress.SpinnerColumn,
                "elapsed": progress.TimeElapsedColumn,
                "remaining": progress.TimeRemainingColumn,
            }
            whole = Column(no_wrap=True)  # on a narrow terminal only the bar shrinks
            columns = [
                progress.BarColumn() if one == "bar"
                else kinds[one](table_column=whole) if one in kinds
                else progress.TextColumn(one, markup=False)
                for one in self.COLUMNS
            ]  # fmt: skip
            file = self._terminal.enter_context(open(name, "w")) if name else None  # noqa: SIM115 - ExitStack
            console = Console(file=file, force_terminal=True) if file else Console(stderr=True)
            self._bar = progress.Progress(*columns, console=console, transient=True)
            self._bar.start()

    def __enter__(self: Display) -> Display:
        self.start()
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._terminal.close()
