"""What rank 0 shows of a training: its progress, remarks, a loss that explodes, values outside of their range."""

from __future__ import annotations

from rueda.errors import RunError
from rueda.records import Row, Run
from rueda.terminal.training import Progress
from rueda.train.loss_watch import LossWatch
from rueda.train.recording.epoch_progress import EpochProgress
from rueda.train.recording.rows import counts_weights
from rueda.train.totals import Figures, out_of_range
from rueda.train.training import Training


class Display:
    """Shows a training on the terminal; every worker has a display, and rank 0's shows something.

    Args:
        training: the training.
        epoch: what this process has trained of the epoch.
        run: the run folder, whose rows tell what was trained before a resume; None: there is none.
        title: the first line.
        show: whether progress is shown; what is announced is shown without it, too.
    """

    def __init__(
        self, training: Training, epoch: EpochProgress, run: Run | None = None, *, title: str, show: bool
    ) -> None:
        self._training, self._epoch = training, epoch
        self.progress = Progress(
            speak=show and training.world.is_main, title=title,
            num_epochs=None if training.recipe.adascale else training.recipe.epochs,
            shows_utilisation=training.utilisation is not None, unit=training.task.unit,
            evaluated_on="test" if training.task.validation is None else "validation",
        )  # fmt: skip
        is_resumed = training.state.step > 0
        former = _first_loss(run) if is_resumed and training.world.is_main else None
        self._watch = LossWatch(is_resumed=is_resumed, former=former)
        self._sees_losses = training.world.device.type == "cpu"
        self._reported: set[tuple[str, str]] = set()

    def announce(self, line: str) -> None:
        """Print a line on rank 0, even if no progress is shown."""
        if self._training.world.is_main:
            self.progress.announce(line)

    def show_step(self) -> None:
        """Show the remarks of an update, whether its loss explodes, and from time to time its figures."""
        remarks = self._training.updater.remarks
        while remarks:
            self.progress.say(remarks.pop(0))
        if self._sees_losses or self.progress.due:
            self._watch_loss()
        if self.progress.due:
            self._show_figures()

    def show_epoch(self, row: Row) -> None:
        """Print the figures of an epoch, and at the end of the training those that the table has no column for."""
        self.progress.show_epoch(row, self._epoch.seconds)
        if self._training.is_over:
            self.progress.show_others(row)

    def report_range(self, of: str, found: Figures) -> None:
        """Say once for each set and metric that its value is outside the range that the metric states."""
        for name, line in out_of_range(self._training.task.all_metrics, found).items():
            if (of, name) not in self._reported:
                self._reported.add((of, name))
                self.announce(f"{of}: {line}")

    def forget_sums(self) -> None:
        """Watch losses whose sums start at zero, as they do in each epoch."""
        self._watch.forget_sums()

    def _watch_loss(self) -> None:
        """Say that the loss explodes; on a GPU only where its value is read anyway, so as not to wait for it."""
        totals = self._training.updater.totals
        line = self._watch.take(float(totals.loss), totals.weight(), self._training.state.step)
        if line is not None:
            self.announce(line)

    def _show_figures(self) -> None:
        training, seconds = self._training, self._epoch.seconds
        totals = training.updater.totals
        found, sees_losses = totals.here(), totals.num_examples > 0  # not on the first stages of a pipeline
        speed: float | None = self._epoch.num_examples / seconds
        if counts_weights(training.task):
            speed = found.weight * training.data_world.size / seconds if sees_losses else None
        self.progress.show_step(
            training.state.epoch, *self._epoch.position(), seconds=seconds, speed=speed,
            loss=found.loss if sees_losses else None, value=found.primary if sees_losses else None,
            metric=found.metrics[0],
        )  # fmt: skip


def _first_loss(run: Run | None) -> float | None:
    """Return the training loss of the first epoch, or part of one, of which a run has a row; None if there is none."""
    try:
        rows = run.rows() if run is not None and run.metrics_file.exists() else []
    except RunError:  # told by those who need the rows
        return None
    return next((row.train_loss for row in rows if row.train_loss is not None), None)
