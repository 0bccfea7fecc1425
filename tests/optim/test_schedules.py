"""Schedules against torch's own on every step, and against the papers' numbers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from rueda.errors import RecipeError
from rueda.optim.adapters import correct_momentum, keep_velocity, torch_scheduler
from rueda.optim.schedules import (
    Constant,
    ConstantWarmup,
    Cosine,
    GradualWarmup,
    OneCycle,
    Polynomial,
    Schedule,
    Step,
    assemble,
)
from rueda.records.recipe.rules import CHOICES

STEPS = 120


def optimizer(rate: float = 0.8, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=rate, **options)


def recorded(opt: torch.optim.Optimizer, scheduler: Any, num_steps: int = STEPS) -> list[float]:
    rates = []
    for _ in range(num_steps):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    return rates


CASES: dict[str, tuple[Schedule, Any]] = {
    "step": (Step(0.8, (30, 60, 90), 0.1), lambda o: lr_scheduler.StepLR(o, 30)),
    "milestones": (Step(0.8, (30, 100), 0.3), lambda o: lr_scheduler.MultiStepLR(o, [30, 100], 0.3)),
    "linear": (Polynomial(0.8, 80, power=1), lambda o: lr_scheduler.PolynomialLR(o, 80, 1)),
    "poly-2": (Polynomial(0.8, 80, power=2), lambda o: lr_scheduler.PolynomialLR(o, 80, 2)),
    "cosine": (Cosine(0.8, STEPS, end=0.02), lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, 0.02)),
    "one-cycle": (
        OneCycle(0.8, STEPS + 1),
        lambda o: lr_scheduler.OneCycleLR(o, 0.8, STEPS + 1, cycle_momentum=False),
    ),
    "one-cycle, other shape": (
        OneCycle(0.8, STEPS + 1, 0.45, 10, 100),
        lambda o: lr_scheduler.OneCycleLR(
            o, 0.8, STEPS + 1, pct_start=0.45, div_factor=10, final_div_factor=100, cycle_momentum=False
        ),
    ),
    "warm-up": (GradualWarmup(0.2, 0.8, 50), lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, 50)),
    "constant warm-up": (
        ConstantWarmup(0.2, 50).then(Constant(0.8)),
        lambda o: lr_scheduler.ConstantLR(o, 0.25, 50),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_torch_on_every_step(case: str) -> None:
    schedule, theirs = CASES[case]
    opt = optimizer()
    assert schedule.values(STEPS) == pytest.approx(recorded(opt, theirs(opt)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_adapter_drives_torch(case: str) -> None:
    opt = optimizer(rate=0.3)
    assert recorded(opt, torch_scheduler(opt, CASES[case][0])) == pytest.approx(CASES[case][0].values(STEPS))


def test_goyal() -> None:
    """ImageNet at batch 8192: 0.1 to 3.2 over 5 epochs of 157 steps, then tenths at epochs 30, 60, 80."""
    per_epoch = 157
    schedule = GradualWarmup(0.1, 3.2, 5 * per_epoch).then(Step(3.2, tuple(e * per_epoch for e in (30, 60, 80)), 0.1))
    increments = {round(schedule(s + 1) - schedule(s), 12) for s in range(5 * per_epoch)}
    assert increments == {round(3.1 / (5 * per_epoch), 12)}  # a constant every iteration
    for epoch, rate in ((0, 0.1), (5, 3.2), (29.99, 3.2), (30, 0.32), (60, 0.032), (80, 0.0032)):
        assert schedule(epoch * per_epoch) == pytest.approx(rate)


@pytest.mark.parametrize("case", CASES)
def test_fractions_of_a_step_lie_between_their_neighbours(case: str) -> None:
    schedule = CASES[case][0]
    for step in range(STEPS - 1):
        low, high = sorted((schedule(step), schedule(step + 1)))
        if "cycle" in case:
            high = 0.8  # the peak may lie between two steps
        assert low - 1e-12 <= schedule(step + 0.4) <= high + 1e-12


@pytest.mark.parametrize("warmup", CHOICES["warmup"])
@pytest.mark.parametrize("schedule", CHOICES["schedule"])
def test_every_combination_of_a_recipe(warmup: str, schedule: str) -> None:
    built = assemble(
        base_rate=0.1,
        peak_rate=0.8,
        num_steps=100,
        warmup=warmup,
        warmup_steps=20,
        schedule=schedule,
        milestones=(50, 75),
        final=0.01,
    )
    assert built(0) == {"gradual": 0.1, "constant": 0.1, "from-zero": 0.0}[warmup]
    if schedule != "one-cycle":
        assert built(20) == pytest.approx(0.8)
    at_end = {"constant": 0.8, "step": 0.008, "polynomial": 0.008, "cosine": 0.008}
    assert built(100) == pytest.approx(at_end.get(schedule, 0.8 / 25 / 1e4))
    assert "steps, then" in repr(built)


def test_restart_and_continue() -> None:
    warm = GradualWarmup(0, 1, 10)
    assert warm.then(Step(1, (15,), 0.5))(15) == 0.5
    assert warm.then(Step(1, (15,), 0.5), restart=True)(15) == 1
    assert warm.then(Step(1, (15,), 0.5), restart=True)(25) == 0.5
    assert assemble(base_rate=1, peak_rate=1, num_steps=9) == Constant(1)


def test_groups_keep_their_ratio_and_a_state_round_trips() -> None:
    def make() -> tuple[torch.optim.SGD, Any]:
        opt = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.5, 0.05)], lr=1.0)
        return opt, torch_scheduler(opt, GradualWarmup(0.2, 0.8, 6))

    opt, scheduler = make()
    recorded(opt, scheduler, 3)
    assert [group["lr"] for group in opt.param_groups] == pytest.approx([0.5, 0.05])
    other, resumed = make()
    resumed.load_state_dict(scheduler.state_dict())
    other.load_state_dict(opt.state_dict())
    assert recorded(other, resumed, 4) == pytest.approx([0.5, 0.6, 0.7, 0.8])


# ---- momentum ------------------------------------------------------------------------------------------------

GRADS = [torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) * (k + 1) for k in range(6)]
RATES = [0.1, 0.1, 0.4, 0.4, 0.04, 0.04]


def form_b(corrected: bool) -> torch.Tensor:
    """u <- m u + rate g; w <- w - u, with or without Goyal's correction."""
    w, u = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for k, (rate, grad) in enumerate(zip(RATES, GRADS, strict=True)):
        if corrected and k and rate != RATES[k - 1]:
            u = u * rate / RATES[k - 1]
        u = 0.9 * u + rate * grad
        w = w - u
    return w


def form_a(change: Any = None) -> torch.Tensor:
    """torch.optim.SGD, with `change` called before each step at a new rate."""
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    opt = torch.optim.SGD([parameter], lr=RATES[0], momentum=0.9)
    for k, (rate, grad) in enumerate(zip(RATES, GRADS, strict=True)):
        if change is not None and k:
            change(opt, RATES[k - 1], rate)
        opt.param_groups[0]["lr"] = rate
        parameter.grad = grad.clone()
        opt.step()
    return parameter.detach()


def test_torch_sgd_is_the_corrected_form() -> None:
    torch.testing.assert_close(form_a(), form_b(corrected=True))
    assert not torch.allclose(form_b(corrected=True), form_b(corrected=False))


def test_kept_velocity_is_the_uncorrected_form() -> None:
    torch.testing.assert_close(form_a(keep_velocity), form_b(corrected=False))


def test_correction_undoes_kept_velocity() -> None:
    def both(opt: torch.optim.Optimizer, old: float, new: float) -> None:
        keep_velocity(opt, old, new)
        correct_momentum(opt, old, new)

    torch.testing.assert_close(form_a(both), form_a())


def test_momentum_edges() -> None:
    opt = optimizer()  # no momentum, no state
    correct_momentum(opt, 0.1, 0.2)
    correct_momentum(opt, 0.0, 0.2)
    with pytest.raises(RecipeError, match="new rate > 0"):
        keep_velocity(opt, 0.1, 0.0)


# ---- Keras ---------------------------------------------------------------------------------------------------


KERAS = """
import os, warnings
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
from rueda.keras import epochs, schedule
from rueda.optim.schedules import GradualWarmup, Step

keras.utils.set_random_seed(0)
inputs, targets = numpy.ones((8, 1)), numpy.zeros((8, 1))


def fit(rate, num_epochs, callbacks=()):
    # A gradient of one: the weight itself shows the rates that were used.
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(rate), loss=lambda true, found: keras.ops.mean(found))
    model.fit(inputs, targets, batch_size=8, epochs=num_epochs, verbose=0, callbacks=list(callbacks))
    return -float(model.get_weights()[0][0, 0])


warmup = GradualWarmup(0.1, 0.8, 7)
assert abs(fit(schedule(warmup, num_steps=10), 10) - sum(warmup(step) for step in range(10))) < 1e-5
callback = keras.callbacks.LearningRateScheduler(epochs(Step(0.1, (3,), 0.1), steps_per_epoch=1))
assert abs(fit(0.5, 5, [callback]) - (3 * 0.1 + 2 * 0.01)) < 1e-6
"""


def test_keras_trains_at_these_rates() -> None:
    """In real Keras, on torch; in a process of its own, since Keras chooses its backend when it is imported."""
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed: pip install 'rueda[keras]'")
    done = subprocess.run([sys.executable, "-c", KERAS], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


ABSENT = {
    "sys.modules['keras'] = None": "keras is needed but not installed: run `pip install 'rueda[keras]'`",
    "sys.modules['tensorflow'] = None; import os; os.environ['KERAS_BACKEND'] = 'tensorflow'": (
        "Keras's backend: expected an installed framework, got 'tensorflow'; set KERAS_BACKEND=torch before"
    ),
}


def test_keras_absent_names_the_command() -> None:
    """Also its backend: Keras chooses TensorFlow where nothing is said."""
    for number, (missing, message) in enumerate(ABSENT.items()):
        if number and importlib.util.find_spec("keras") is None:
            pytest.skip("Keras is not installed: pip install 'rueda[keras]'")
        code = f"import sys; {missing}\ntry: import rueda.keras\nexcept Exception as error: print(error)"
        done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120)
        assert message in done.stdout, done.stdout + done.stderr


# ---- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradualWarmup(0.1, 0.2, 0), "num_steps: expected more than 0"),
        (lambda: Cosine(0.1, -1), "num_steps: expected more than 0"),
        (lambda: Step(0.1, (20, 10)), "milestones: expected rising steps"),
        (lambda: OneCycle(1, 10, rising=1.5), "rising: expected a fraction"),
        (lambda: Constant(1).then(Constant(2)), "then: expected a first schedule with an end"),
        (lambda: assemble(base_rate=1, peak_rate=1, num_steps=5, warmup_steps=9), "warm-up: expected at most the 5"),
        (lambda: assemble(base_rate=1, peak_rate=1, num_steps=5, schedule="zigzag"), "schedule: expected one of"),
        (lambda: assemble(base_rate=1, peak_rate=1, num_steps=5, warmup_steps=1, warmup="hot"), "warmup: expected"),
        (lambda: torch_scheduler(optimizer(0.0), Constant(1)), "lr > 0 in the first group"),
    ],
)
def test_mistakes_are_told(make: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_schedules_need_no_torch() -> None:
    names = ("schedules", "scaling", "batch_growth", "adapters")
    code = f"import sys, {', '.join(f'rueda.optim.{name}' for name in names)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
