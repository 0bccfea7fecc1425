"""What the user sees of work that is usually over at once: nothing for two seconds, then a bar, or plain lines."""

from __future__ import annotations

from rueda.terminal.bar import OnTerminal


class DelayedProgress(OnTerminal):
    """Counts whatever is counted, such as the bytes of a download, if it takes more than two seconds."""

    COLUMNS = ("{task.description}", "bar", "{task.percentage:>3.0f} %", "remaining")
    LINE_SECONDS = 2.0

    def start(self) -> None:
        """Wait with the bar until there is something to show."""

    def show(self, what: str, done: int, total: int | None) -> None:
        """Show how far the work is; a new ``what`` takes the bar over."""
        if self._bar is None:
            if not self.due:
                return
            super().start()
            self.line(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(what, total=total)
            self._bar.update(self._task, description=what, completed=done, total=total)
