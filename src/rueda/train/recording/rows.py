"""The rows of a training: its figures after an update, and at the end of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rueda.records import Row
from rueda.records.metric import ACCURACY, LOSS
from rueda.tasks import Task
from rueda.train.evaluate import Evaluation
from rueda.train.recording.epoch_progress import EpochProgress
from rueda.train.state import epoch_sums
from rueda.train.totals import Figures, figures
from rueda.train.training import Training

_SHORTEST = 1e-9
"""seconds, so that a speed is finite"""


def counts_weights(task: Task) -> bool:
    """Return whether the throughput counts what the losses are averaged over, such as tokens, and not examples."""
    return task.unit == "tokens"


class RowBuilder:
    """Makes the rows of a training.

    Args:
        training: the training.
        epoch: what this process has trained of the epoch.
        say: prints a line on rank 0.
    """

    def __init__(self, training: Training, epoch: EpochProgress, say: Callable[[str], None]) -> None:
        self._training, self._epoch, self._say = training, epoch, say

    def training_figures(self) -> Figures:
        """Return the figures of the epoch's training batches so far; every worker must call it."""
        return figures(self._training.task.all_metrics, epoch_sums(self._training), {})

    def of_step(self, train: Figures, *, diverged: bool) -> Row:
        """Return the row of an update.

        Args:
            train: the figures of the training batches.
            diverged: whether anything is known to be not finite.
        """
        return self._row("step", self._mean_speed(train), train, {}, diverged=diverged)

    def of_epoch(self, train: Figures, evaluation: Evaluation, *, diverged: bool) -> Row:
        """Return the row of an epoch that has ended; every worker must call it.

        Args:
            train: the figures of the training batches.
            evaluation: those on the other data.
            diverged: whether anything is known to be not finite.
        """
        test, state = evaluation.test, self._training.state
        if self._epoch.num_steps:
            seconds = max(self._epoch.seconds, _SHORTEST)
            speed, examples_speed = self._num_units() / seconds, self._epoch.num_examples / seconds
        else:  # the updates were made before the training was resumed, or its workers changed
            speed, examples_speed = self._mean_speed(train), state.examples / max(state.seconds, _SHORTEST)
        return self._row(
            "epoch", speed, train,
            {name: found.values for name, found in evaluation.sets.items()}, diverged=diverged,
            test_loss=test.loss, test_accuracy=test.values.get(ACCURACY.name),
            test_correct=test.counts.get(ACCURACY.name), recalibrated=evaluation.recalibrated,
            last=self._training.is_over,
            model_flops_utilisation=self._utilisation(examples_speed), **self._noise_figures(),
        )  # fmt: skip

    def _row(
        self, kind: str, speed: float, train: Figures, sets: Mapping[str, dict[str, float | None]], *, diverged: bool,
        **results: Any,
    ) -> Row:  # fmt: skip
        training, state = self._training, self._training.state
        return Row(
            kind=kind, epoch=state.epoch, step=state.step, examples=state.examples, seconds=state.seconds,
            train_loss=train.loss, train_accuracy=train.values.get(ACCURACY.name), images_per_second=speed,
            unit=training.task.unit, units=state.units + train.weight if counts_weights(training.task) else None,
            metrics=train.metrics, figures={"train": train.values, **sets},
            rate=training.rate, global_batch=training.global_batch, rehearsed=training.rehearsed,
            diverged=diverged or not math.isfinite(train.loss), **results,
        )  # fmt: skip

    def _mean_speed(self, train: Figures) -> float:
        """Return the throughput of the whole training so far."""
        state = self._training.state
        units = state.units + train.weight if counts_weights(self._training.task) else state.examples
        return units / max(state.seconds, _SHORTEST)

    def _num_units(self) -> float:
        """Return the images, examples or tokens of this epoch in this process; all workers must call it for tokens."""
        if not counts_weights(self._training.task):
            return self._epoch.num_examples
        return self._training.updater.totals.sums_over(self._training.world)[LOSS.name][1]

    def _utilisation(self, speed: float) -> float | None:
        utilisation = self._training.utilisation
        if utilisation is None:
            return None
        value = utilisation.at(speed)
        if utilisation.remark is not None:
            self._say(utilisation.remark)
            self._training.utilisation = None
        return value

    def _noise_figures(self) -> dict[str, float]:
        found = None if self._training.noise is None else self._training.noise.current
        if found is None:
            return {}
        return {"noise_scale": found.value, "noise_scale_low": found.low, "noise_scale_high": found.high}
