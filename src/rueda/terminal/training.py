"""The progress of a training, shown by one worker: a bar and a line per epoch on a terminal, only lines elsewhere.

The lines form a table that fits into 80 columns::

    epoch       time   images/s  train loss  accuracy  test loss  accuracy
     1/12      9.0 s      5,500      1.2000    57.1 %     1.1000    60.2 %
     2/12     10.0 s      5,380      0.9712    64.9 %  step 41/97

The columns of accuracy show the task's primary metric by its name; a task without one has none. With validation data,
their loss and metric (``val. loss``) take the place of those on test data, which are only reported. Where the peak of
the GPUs is known, a last column shows the model flops utilisation (MFU).
"""

from __future__ import annotations

import time

from rueda.records import Row
from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.terminal.bar import ProgressDisplay
from rueda.terminal.metrics import write_value
from rueda.terminal.numbers import NONE, number, percent

_SHORT = {"validation": "val."}
_METRIC_WIDTH = 8


class Progress(ProgressDisplay):
    """Shows the progress of a training; a worker without ``speak`` shows nothing.

    On a terminal a bar counts the steps of the epoch and shows loss, metric and throughput. Elsewhere a line is printed
    at most every ten seconds. In both cases a line is printed at the end of each epoch.

    Args:
        speak: whether this worker shows anything.
        title: what is trained; printed once before the first line.
        num_epochs: how many epochs the training has; None: not known beforehand.
        shows_utilisation: whether the model flops utilisation is shown.
        unit: what the throughput counts.
        evaluated_on: the data whose figures are shown: test or validation.
    """

    COLUMNS = (*ProgressDisplay.COLUMNS, "{task.fields[note]}")

    def __init__(
        self, *, speak: bool, title: str, num_epochs: int | None, shows_utilisation: bool = False, unit: str = "images",
        evaluated_on: str = "test",
    ) -> None:  # fmt: skip
        super().__init__(speak=speak)
        self._title, self._unit, self._evaluated_on = title, unit, evaluated_on
        self._of = "" if num_epochs is None else f"/{num_epochs}"
        self._has_headings = False
        self._shows_utilisation = shows_utilisation

    def begin(self) -> None:
        """Show what is trained."""
        self.say(self._title)
        if self._bar is not None:
            self._task = self._bar.add_task("", note="", total=None, visible=False)  # until total is known

    def show_step(
        self, epoch: int, done: int, total: int, *, seconds: float, speed: float | None, loss: float | None,
        value: float | None, metric: MetricInfo = ACCURACY,
    ) -> None:  # fmt: skip
        """Show how far the epoch has come, with its figures so far.

        Args:
            epoch: number of the epoch, from 0.
            done: number of steps made in this epoch.
            total: number of steps in the whole epoch.
            seconds: training time of this epoch so far.
            speed: images, examples or tokens per second of all workers together; None if this worker does not know.
            loss: mean training loss; None if this worker does not know it, such as the first stage of a pipeline.
            value: the primary metric on the training batches, if it is known.
            metric: the primary metric.
        """
        self._last = time.monotonic()
        known = (NONE if speed is None else f"{speed:,.0f}", NONE if loss is None else _loss(loss))
        figures = (f"{seconds:.1f} s", *known, *_metric(metric, value))
        if self._bar is not None:
            shown = "".join(f" {metric.name} {text}" for text in figures[3:])
            note = f"loss {figures[2]}{shown} {figures[1]} {self._unit}/s"
            title = f"epoch {epoch + 1}{self._of}"
            self._bar.update(self._task, description=title, completed=done, total=total, note=note, visible=True)
        else:
            self._say_line(epoch + 1, metric, (*figures, f"step {done}/{total}"))

    def show_epoch(self, row: Row, seconds: float) -> None:
        """Print the figures of an epoch that took ``seconds``."""
        utilisation = [_percent(row.model_flops_utilisation)] * self._shows_utilisation
        metric, on = row.metric, self._evaluated_on
        train = (_loss(row.train_loss), *_metric(metric, row.value("train")))
        evaluated = (_loss(row.value(on, LOSS.name)), *_metric(metric, row.value(on)))
        speed = f"{row.images_per_second:,.0f}"
        self._say_line(row.epoch, metric, (f"{seconds:.1f} s", speed, *train, *evaluated, *utilisation))

    def show_others(self, row: Row) -> None:
        """Print the figures of the last epoch that the table does not hold: further metrics and test sets."""
        for of, values in row.figures.items():
            shown = {row.metric.name, LOSS.name} if of in ("train", self._evaluated_on) else set()
            known = {one.name: one for one in (LOSS, *row.metrics)}
            told = [
                f"{name} {write_value(known[name], value)}"
                for name, value in values.items()
                if name in known and name not in shown and value is not None
            ]
            if told:
                self.say(f"{of}: {', '.join(told)}")

    def _say_line(self, epoch: int, metric: MetricInfo, cells: tuple[str, ...]) -> None:
        width = max(5, 2 * len(self._of) - 1)
        on = _SHORT.get(self._evaluated_on, self._evaluated_on)
        name = [metric.name] if metric.name != LOSS.name else []
        headings = ("time", f"{self._unit}/s", "train loss", *name, f"{on} loss", *name)
        least = (9, 9, 10, *([_METRIC_WIDTH] if name else []), 9, *([_METRIC_WIDTH] if name else []))
        widths = (*(max(pair) for pair in zip(least, map(len, headings), strict=True)), 6)
        if not self._has_headings:
            self._has_headings = True
            self.say(_line(f"{'epoch':>{width}}", (*headings, *["MFU"] * self._shows_utilisation), widths))
        self.say(_line(f"{f'{epoch}{self._of}':>{width}}", cells, widths))


def _line(epoch: str, cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    return "  ".join([epoch, *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))])


def _metric(metric: MetricInfo, value: float | None) -> list[str]:
    """Write the primary metric; the loss has a column of its own."""
    if metric.name == LOSS.name:
        return []
    return [_percent(value) if metric.percent else NONE if value is None else _loss(value)]


def _loss(value: float | None) -> str:
    """Write a loss in at most nine characters.

    >>> _loss(1.2), _loss(12345.678), _loss(float("nan"))
    ('1.2000', '1.235e+04', 'nan')
    """
    if value is None or number(value) is None:
        return "nan"
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3e}"


def _percent(fraction: float | None) -> str:
    """Write a fraction with a plain space: a line is never wrapped, and people search for what they see."""
    return percent(fraction).replace("\N{NO-BREAK SPACE}", " ")
