"""The progress of a training, shown by one worker: a bar and a line per epoch on a terminal, only lines elsewhere.

The lines form a table that fits into 80 columns::

    epoch       time   images/s  train loss  accuracy  test loss  accuracy
     1/12      9.0 s      5,500      1.2000    57.1 %     1.1000    60.2 %
     2/12     10.0 s      5,380      0.9712    64.9 %  step 41/97

Where the peak of the GPUs is known, a last column shows the model flops utilisation (MFU).
"""

from __future__ import annotations

import time

from rueda.records import Row
from rueda.terminal.bar import ProgressDisplay
from rueda.terminal.numbers import NONE, number

_HEADINGS = ("time", "images/s", "train loss", "accuracy", "test loss", "accuracy")
_WIDTHS = (9, 9, 10, 8, 9, 8, 6)


class Progress(ProgressDisplay):
    """Shows the progress of a training; a worker without ``speak`` shows nothing.

    On a terminal a bar counts the steps of the epoch and shows loss, accuracy and images/s. Elsewhere a line is printed
    at most every ten seconds. In both cases a line is printed at the end of each epoch.

    Args:
        speak: whether this worker shows anything.
        title: what is trained; printed once before the first line.
        num_epochs: how many epochs the training has.
        shows_utilisation: whether the model flops utilisation is shown.
    """

    COLUMNS = (*ProgressDisplay.COLUMNS, "{task.fields[note]}")

    def __init__(self, *, speak: bool, title: str, num_epochs: int, shows_utilisation: bool = False) -> None:
        super().__init__(speak=speak)
        self._title, self._num_epochs = title, num_epochs
        self._has_headings = False
        self._shows_utilisation = shows_utilisation

    def begin(self) -> None:
        """Show what is trained."""
        self.say(self._title)
        if self._bar is not None:
            self._task = self._bar.add_task("", note="", total=None, visible=False)  # until total is known

    def show_step(
        self, epoch: int, done: int, total: int, *, seconds: float, speed: float, loss: float, accuracy: float | None
    ) -> None:
        """Show how far the epoch has come, with its figures so far.

        Args:
            epoch: number of the epoch, from 0.
            done: number of steps made in this epoch.
            total: number of steps in the whole epoch.
            seconds: training time of this epoch so far.
            speed: images/s of all workers together.
            loss: mean training loss.
            accuracy: training accuracy, if the task has one.
        """
        self._last = time.monotonic()
        figures = _figures(seconds, speed, loss, accuracy)
        if self._bar is not None:
            note = f"loss {figures[2]} accuracy {figures[3]} {figures[1]} images/s"
            title = f"epoch {epoch + 1}/{self._num_epochs}"
            self._bar.update(self._task, description=title, completed=done, total=total, note=note, visible=True)
        else:
            self._say_line(epoch + 1, (*figures, f"step {done}/{total}"))

    def show_epoch(self, row: Row, seconds: float) -> None:
        """Print the figures of an epoch that took ``seconds``."""
        utilisation = [_percent(row.model_flops_utilisation)] * self._shows_utilisation
        test = (_loss(row.test_loss), _percent(row.test_accuracy), *utilisation)
        self._say_line(
            row.epoch, (*_figures(seconds, row.images_per_second, row.train_loss, row.train_accuracy), *test)
        )

    def _say_line(self, epoch: int, cells: tuple[str, ...]) -> None:
        digits = len(str(self._num_epochs))
        width = max(5, 2 * digits + 1)
        if not self._has_headings:
            self._has_headings = True
            self.say(_line(f"{'epoch':>{width}}", (*_HEADINGS, *["MFU"] * self._shows_utilisation)))
        self.say(_line(f"{f'{epoch}/{self._num_epochs}':>{width}}", cells))


def _line(epoch: str, cells: tuple[str, ...]) -> str:
    return "  ".join([epoch, *(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=False))])


def _figures(seconds: float, speed: float, loss: float | None, accuracy: float | None) -> tuple[str, str, str, str]:
    return f"{seconds:.1f} s", f"{speed:,.0f}", _loss(loss), _percent(accuracy)


def _loss(value: float | None) -> str:
    """Write a loss in at most nine characters.

    >>> _loss(1.2), _loss(12345.678), _loss(float("nan"))
    ('1.2000', '1.235e+04', 'nan')
    """
    if value is None or number(value) is None:
        return "nan"
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3e}"


def _percent(fraction: float | None) -> str:
    return NONE if fraction is None else f"{100 * fraction:.1f} %"
