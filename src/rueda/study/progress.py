"""What the user sees while the runs of a study are trained: bars on a terminal, one line for each run elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rueda.optim.rates import adapted
from rueda.study.runs import last_row
from rueda.terminal.bar import ProgressDisplay
from rueda.terminal.metrics import write_value
from rueda.terminal.numbers import duration

if TYPE_CHECKING:
    from rueda.study.planned_run import PlannedRun

_POLL_SECONDS = 1.0


class StudyProgress(ProgressDisplay):
    """Shows how many runs are finished and, on a terminal, the epochs of those that are being trained."""

    COLUMNS = ("{task.description}", "bar", "{task.completed}/{task.total}", "elapsed")

    def __init__(self, *, speak: bool, total: int, done: int) -> None:
        super().__init__(speak=speak)
        self._total, self._done = total, done
        self._run_bars: dict[Path, Any] = {}
        self._polled = 0.0

    def begin(self) -> None:
        """Show how many runs are finished already."""
        if self._bar is not None:
            self._task = self._bar.add_task("runs", total=self._total, completed=self._done)
        elif self._done:
            self.line(f"{self._done} of {self._total} runs are finished already")

    def started(self, run: PlannedRun) -> None:
        """Add a bar for a run that begins."""
        if self._bar is not None:
            title = f"{run.name}, seed {run.seed}, epochs"
            total = None if run.recipe.adascale else adapted(run.recipe).epochs  # AdaScale ends by its own clock
            self._run_bars[run.folder] = self._bar.add_task(title, total=total)

    def waiting(self) -> None:
        """Update the bars, about once a second, from what the runs have written."""
        if self._bar is None or time.monotonic() - self._polled < _POLL_SECONDS:
            return
        self._polled = time.monotonic()
        for folder, bar in self._run_bars.items():
            row = last_row(folder)
            self._bar.update(bar, completed=0 if row is None else row.epoch)

    def finished(self, run: PlannedRun, failure: str | None = None) -> None:
        """Replace the bar of a run that has ended by a line with its result, or with the reason for its failure."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
            if run.folder in self._run_bars:
                self._bar.remove_task(self._run_bars.pop(run.folder))
        self.say(f"{self._done:>{len(str(self._total))}}/{self._total}  {failure or _result_line(run)}")


def _result_line(run: PlannedRun) -> str:
    row, title = last_row(run.folder), f"{run.name}, seed {run.seed}"
    if row is None:
        return title
    if row.diverged:
        return f"{title}: diverged in the epoch that ended at update {row.step:,}"
    value = row.value()
    shown = write_value(row.metric, value).replace("\N{NO-BREAK SPACE}", " ")
    test = "" if value is None else f"test {row.metric.name} {shown}, "
    return f"{title}: {test}{row.step:,} updates, {duration(row.seconds)}"
