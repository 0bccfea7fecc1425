"""What the user sees while a study runs: a bar over the runs on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rueda.study.planned_run import PlannedRun
from rueda.study.runs import last_row
from rueda.terminal.bar import OnTerminal
from rueda.terminal.numbers import duration
from rueda.train.regime import adapted

_LOOK_SECONDS = 1.0


def run_line(run: PlannedRun) -> str:
    """Say what a finished run came to."""
    row = last_row(run.folder)
    title = f"{run.name}, seed {run.seed}"
    if row is None:
        return title
    if row.diverged:
        return f"{title}: diverged in the epoch that ended at update {row.step:,}"
    test = "" if row.test_accuracy is None else f"test accuracy {100 * row.test_accuracy:.1f} %, "
    return f"{title}: {test}{row.step:,} updates, {duration(row.seconds)}"


class StudyProgress(OnTerminal):
    """Shows a study; silent unless told to speak."""

    COLUMNS = ("{task.description}", "bar", "{task.completed}/{task.total}", "elapsed")

    def __init__(self, *, speak: bool, total: int, done: int) -> None:
        super().__init__(speak=speak)
        self._total, self._done = total, done
        self._all: Any = None
        self._lines: dict[Path, Any] = {}
        self._looked = 0.0

    def begin(self) -> None:
        """Show how many runs are finished already."""
        if self._bar is not None:
            self._all = self._bar.add_task("runs", total=self._total, completed=self._done)
        elif self._done:
            self.line(f"{self._done} of {self._total} runs are finished already")

    def started(self, run: PlannedRun) -> None:
        """Show a run that begins."""
        if self._bar is not None:
            title = f"{run.name}, seed {run.seed}, epochs"
            self._lines[run.folder] = self._bar.add_task(title, total=adapted(run.recipe).epochs)

    def waiting(self) -> None:
        """Look, about once a second, how far the runs are."""
        if self._bar is None or time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for folder, line in self._lines.items():
            row = last_row(folder)
            self._bar.update(line, completed=0 if row is None else row.epoch)

    def finished(self, run: PlannedRun, failure: str | None = None) -> None:
        """Show a run that has ended, well or by a failure."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._all, completed=self._done)
            if run.folder in self._lines:
                self._bar.remove_task(self._lines.pop(run.folder))
        self.say(f"{self._done:>{len(str(self._total))}}/{self._total}  {failure or run_line(run)}")
