"""Progress of work that is usually quick: nothing is shown for two seconds, then a bar or lines."""

from __future__ import annotations

from rueda.terminal.bar import ProgressDisplay


class DelayedProgress(ProgressDisplay):
    """Shows a count, such as the bytes of a download, once the work has taken two seconds."""

    COLUMNS = ("{task.description}", "bar", "{task.percentage:>3.0f} %", "remaining")
    LINE_SECONDS = 2.0

    def start(self) -> None:
        """Do nothing yet: :meth:`show` starts the bar."""

    def show(self, what: str, done: int, total: int | None) -> None:
        """Show how much is done of the work named ``what``; a new name reuses the bar."""
        if self._bar is None:
            if not self.due:
                return
            super().start()
            self.line(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(what, total=total)
            self._bar.update(self._task, description=what, completed=done, total=total)
