"""Progress of work in phases: a bar on a terminal, a line for each phase elsewhere."""

from __future__ import annotations

from rueda.terminal.bar import ProgressDisplay


class PhasesProgress(ProgressDisplay):
    """Counts phases and shows the name of the current one."""

    COLUMNS = ("spinner", "{task.description}", "bar", "{task.completed}/{task.total}", "elapsed")

    def __init__(self, *, speak: bool, phases: int, done: int = 0) -> None:
        super().__init__(speak=speak)
        self._phases, self._done = phases, done

    def begin(self) -> None:
        """Show how many phases are done already."""
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self._phases, completed=self._done)

    def phase(self, text: str) -> None:
        """Begin the next phase."""
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=self._done)
        self.line(f"{self._done + 1}/{self._phases} {text}")
        self._done += 1

    def tell(self, text: str) -> None:
        """Show a detail of the current phase in the bar; without a bar nothing is shown."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
