"""What the user sees of work in phases: a bar over them on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rueda.terminal.bar import OnTerminal


class PhasesProgress(OnTerminal):
    """Shows the phases; silent unless told to speak."""

    COLUMNS = ("spinner", "{task.description}", "bar", "{task.completed}/{task.total}", "elapsed")

    def __init__(self, *, speak: bool, phases: int, done: int = 0) -> None:
        super().__init__(speak=speak)
        self._phases, self._done = phases, done

    def begin(self) -> None:
        """Show what is done already."""
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self._phases, completed=self._done)

    def phase(self, text: str) -> None:
        """Begin a phase."""
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=self._done)
        self.line(f"{self._done + 1}/{self._phases} {text}")
        self._done += 1

    def tell(self, text: str) -> None:
        """Say what the phase is at; only a bar shows it."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
