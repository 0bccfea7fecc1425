"""Use a schedule of :mod:`rueda.optim.schedules` in Keras: at every step, or at every epoch.

The values are stored in a table, so that the schedule runs inside the compiled step of every Keras backend, and the
formula of each schedule is written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy

from rueda.errors import RecipeError
from rueda.keras.framework import keras
from rueda.optim import schedules
from rueda.optim.schedules import Schedule


def schedule(rates: Schedule, num_steps: int) -> StepSchedule:
    """Return a ``keras.optimizers.schedules.LearningRateSchedule`` that changes the rate at every step.

    Any Keras optimizer takes it as its ``learning_rate``. It is saved with the model.

    Args:
        rates: the learning rate as a function of the step.
        num_steps: steps of the training; later steps use the last value.

    >>> from rueda.optim.schedules import GradualWarmup
    >>> rates = schedule(GradualWarmup(0.1, 0.8, 500), num_steps=1000)
    >>> [round(float(rates(step)), 4) for step in (0, 250, 500, 5000)]
    [0.1, 0.45, 0.8, 0.8]
    """
    if not num_steps >= 1:
        raise RecipeError("num_steps", expected="at least 1", got=num_steps, do="give the steps of the whole training")
    return StepSchedule(_written(rates, num_steps), num_steps)


def epochs(rates: Schedule, steps_per_epoch: int) -> Callable[..., float]:
    """Return a function from epoch to learning rate, as ``keras.callbacks.LearningRateScheduler`` takes it.

    The rate stays constant within an epoch, and the optimizer must have been made with a number as its rate.

    >>> from rueda.optim.schedules import GradualWarmup
    >>> function = epochs(GradualWarmup(0.1, 0.8, 300), steps_per_epoch=100)
    >>> [round(function(epoch, None), 4) for epoch in range(4)]
    [0.1, 0.3333, 0.5667, 0.8]
    """

    def rate(epoch: int, current_rate: float | None = None) -> float:
        return rates(epoch * steps_per_epoch)

    return rate


@keras.saving.register_keras_serializable(package="rueda")
class StepSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """The table of a schedule; :func:`schedule` makes it.

    Args:
        rates: the schedule as its class and fields, or a list of its values if it is not one of Rueda's.
        num_steps: length of the table.
    """

    def __init__(self, rates: dict[str, Any] | list[float], num_steps: int) -> None:
        super().__init__()
        self.rates, self.num_steps = rates, num_steps
        values = _read(rates).values(num_steps) if isinstance(rates, dict) else rates
        self.table = numpy.asarray(values, dtype=keras.config.floatx())

    def __call__(self, step: Any) -> Any:
        """Return the rate at a step, as a tensor."""
        index = keras.ops.clip(keras.ops.cast(step, "int32"), 0, self.num_steps - 1)
        return keras.ops.take(keras.ops.convert_to_tensor(self.table), index)

    def __repr__(self) -> str:
        return repr(_read(self.rates)) if isinstance(self.rates, dict) else f"{self.num_steps} rates"

    def get_config(self) -> dict[str, Any]:
        """Return the schedule and its length."""
        return {"rates": self.rates, "num_steps": self.num_steps}


def _written(rates: Schedule, num_steps: int) -> dict[str, Any] | list[float]:
    """Write a schedule of Rueda's as its class and fields, which stay few for a training of a million steps."""
    kind: Any = type(rates)
    if kind.__module__ != schedules.__name__:
        return rates.values(num_steps)
    inner = {field.name: getattr(rates, field.name) for field in fields(kind)}
    parts = {key: _written(part, num_steps) if isinstance(part, Schedule) else part for key, part in inner.items()}
    if any(isinstance(inner[key], Schedule) and isinstance(part, list) for key, part in parts.items()):
        return rates.values(num_steps)
    return {"schedule": kind.__name__, **parts}


def _read(written: dict[str, Any]) -> Schedule:
    """Make the schedule that :func:`_written` wrote; it may come from a file."""
    parts = {key: _read(part) if isinstance(part, dict) else part for key, part in written.items()}
    name = parts.pop("schedule", None)
    kind = getattr(schedules, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, Schedule)):
        raise RecipeError("schedule", expected="a class of rueda.optim.schedules", got=name, do="check the saved model")
    return kind(**parts)
