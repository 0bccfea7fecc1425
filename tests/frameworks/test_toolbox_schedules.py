"""Schedules in Keras: the rates of every step and epoch, inside the compiled step, saved with the model.

On the Keras backend of this process; ``test_toolbox_backends.py`` runs this file on the other backends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy
import pytest

from rueda.errors import RecipeError
from rueda.keras import Lars, MomentumSGD, epochs, schedule
from rueda.keras.schedules import StepSchedule
from rueda.optim.scaling import rate_factor
from rueda.optim.schedules import Constant, Cosine, GradualWarmup, OneCycle, Polynomial, Schedule, Step, assemble

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own, on torch

WARMUP = GradualWarmup(0.1, 0.8, 4)


class Saw(Schedule):
    """A schedule of the user's own."""

    def __call__(self, step: float) -> float:
        return 0.1 * (step % 3)

    def __repr__(self) -> str:
        return "saw"


SCHEDULES: dict[str, Schedule] = {
    "warm-up, steps": WARMUP.then(Step(0.8, (6, 8), 0.1)),
    "warm-up, cosine": WARMUP.then(Cosine(0.8, 6), restart=True),
    "polynomial": Polynomial(0.5, 8),
    "one cycle": OneCycle(0.5, 10),
    "recipe": assemble(base_rate=0.1, peak_rate=0.1 * rate_factor("sqrt", 16), num_steps=10, warmup_steps=3),
    "own": Saw(),
    "own within": WARMUP.then(Saw()),
}


def moved(rate: Any, num_epochs: int, callbacks: tuple[Any, ...] = (), make: Any = keras.optimizers.SGD) -> float:
    """Train with a gradient of one: the weight itself is the sum of the rates."""
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=make(rate), loss=lambda true, found: keras.ops.mean(found))
    ones = numpy.ones((8, 1))
    model.fit(ones, ones, batch_size=4, epochs=num_epochs, verbose=0, callbacks=list(callbacks))
    return -float(model.get_weights()[0][0, 0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_has_its_rate(name: str) -> None:
    rates = SCHEDULES[name]
    made = schedule(rates, num_steps=10)
    assert [float(made(step)) for step in range(12)] == pytest.approx([rates(min(step, 9)) for step in range(12)])
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    assert isinstance(again, StepSchedule) and again.get_config() == made.get_config()
    assert again.table.tolist() == made.table.tolist()


def test_a_compiled_training_follows_it() -> None:
    rates = SCHEDULES["warm-up, steps"]
    assert moved(schedule(rates, 10), 5) == pytest.approx(sum(rates.values(10)), rel=1e-5)
    assert moved(schedule(WARMUP, 10), 5, make=lambda rate: Lars(rate, momentum=0.0, adapt=False)) == pytest.approx(
        sum(WARMUP.values(10)), rel=1e-5
    )


def test_every_epoch_has_its_rate() -> None:
    callback = keras.callbacks.LearningRateScheduler(epochs(Step(0.1, (6,), 0.1), steps_per_epoch=2))
    assert moved(0.5, 5, (callback,)) == pytest.approx(2 * (3 * 0.1 + 2 * 0.01), rel=1e-5)


def test_momentum_keeps_no_old_rate() -> None:
    """After a jump of the rate from r to 10 r, the whole momentum moves at the new rate (Goyal et al., section 3)."""
    rates = schedule(Step(0.01, (1,), 10.0), 2)
    make = lambda rate: MomentumSGD(rate, momentum=0.9)  # noqa: E731
    assert moved(rates, 1, make=make) == pytest.approx(0.01 * 1 + 0.1 * 1.9, rel=1e-5)
    uncorrected = moved(rates, 1, make=lambda rate: keras.optimizers.SGD(rate, momentum=0.9))
    assert uncorrected == pytest.approx(0.01 * 1 + 0.9 * 0.01 + 0.1, rel=1e-5)


def test_a_schedule_is_saved_with_the_model(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=Lars(schedule(SCHEDULES["warm-up, cosine"], 10)), loss="mse")
    model.fit(numpy.ones((8, 1)), numpy.ones((8, 1)), batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert float(loaded.optimizer.learning_rate) == pytest.approx(WARMUP(2))
    assert repr(loaded.optimizer._learning_rate) == repr(SCHEDULES["warm-up, cosine"])


def test_mistakes_are_told() -> None:
    with pytest.raises(RecipeError, match="num_steps: expected at least 1, got 0"):
        schedule(Constant(0.1), 0)
    with pytest.raises(RecipeError, match=r"expected a class of rueda.optim.schedules, got 'assemble'"):
        StepSchedule({"schedule": "assemble", "base_rate": 1, "peak_rate": 1, "num_steps": 3}, 3)
