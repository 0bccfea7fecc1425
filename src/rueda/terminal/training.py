"""What the user sees while it trains: a bar on a terminal, plain lines elsewhere, from one worker only."""

from __future__ import annotations

import time

from rueda.records import Row
from rueda.terminal.bar import OnTerminal


def epoch_line(row: Row, num_epochs: int, seconds: float) -> str:
    """Write the epoch as the course does: time, images/s, accuracy.

    >>> row = Row(kind="epoch", epoch=1, step=97, examples=49664, seconds=9.0, train_loss=1.2, train_accuracy=0.571,
    ...     test_loss=1.1, test_accuracy=0.602, images_per_second=5500.0, rate=0.001, global_batch=512)
    >>> epoch_line(row, 12, 9.0)
    'epoch  1/12     9.0 s     5,500 images/s   train loss 1.2000 accuracy 57.1 %   test loss 1.1000 accuracy 60.2 %'
    """
    width = len(str(num_epochs))
    here = " (rehearsed, one process)" if row.rehearsed else ""
    return (
        f"epoch {row.epoch:>{width}}/{num_epochs} {seconds:>7.1f} s {row.images_per_second:>9,.0f} images/s{here}   "
        f"train {_result(row.train_loss, row.train_accuracy)}   test {_result(row.test_loss, row.test_accuracy)}"
    )


def _result(loss: float | None, accuracy: float | None) -> str:
    text = "loss nan" if loss is None or loss != loss else f"loss {loss:.4f}"
    return text if accuracy is None else f"{text} accuracy {100 * accuracy:.1f} %"


class Progress(OnTerminal):
    """Shows a training; silent on all workers but the one that is told to speak.

    On a terminal a bar counts the steps of the epoch with loss, accuracy and images/s. Elsewhere a plain line comes
    every ten seconds at most, and one an epoch.
    """

    COLUMNS = (*OnTerminal.COLUMNS, "{task.fields[note]}")

    def __init__(self, *, speak: bool, description: str, num_epochs: int) -> None:
        super().__init__(speak=speak)
        self._num_epochs = num_epochs
        self._description = description

    def begin(self) -> None:
        """Show what is trained."""
        if self._bar is not None:
            self._task = self._bar.add_task(self._description, note="", total=None)

    def show_step(self, epoch: int, done: int, total: int, loss: float, accuracy: float | None, speed: float) -> None:
        """Show where the epoch is."""
        self._last = time.monotonic()
        note = f"{_result(loss, accuracy)}  {speed:,.0f} images/s"
        if self._bar is not None:
            title = f"{self._description} {epoch + 1}/{self._num_epochs}"
            self._bar.update(self._task, description=title, completed=done, total=total, note=note)
        self.line(f"epoch {epoch + 1}/{self._num_epochs} step {done}/{total}  {note}")
