"""Steps are those of a training, stages take the time they take, memory follows the batch."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rueda
from rueda.errors import RecipeError
from rueda.measure.clock import STAGES
from rueda.measure.memory import device_bytes, peak_bytes, reset_peak, usable_bytes
from rueda.measure.steps import Stepper, default_batches, measure_steps, probe_batches
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.world import World
from tinytask import network, parameters, tiny_task, training

SLEEP = 0.05


class Slow(torch.autograd.Function):
    """Sleeps in the forward pass, the backward pass, or neither."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, forward: float, backward: float) -> Tensor:
        ctx.backward_seconds = backward
        time.sleep(forward)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_seconds)
        return gradient, None, None


class Sleeper(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.net, self.seconds = network(), (forward, backward)

    def forward(self, inputs: Tensor) -> Tensor:
        return Slow.apply(self.net(inputs), *self.seconds)  # type: ignore[no-any-return,no-untyped-call]


class SlowData(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(SLEEP / 4)
        return torch.zeros(8), torch.tensor(0)


def slow_task(stage: str) -> Task:
    task = tiny_task()
    if stage == "data":
        return replace(task, train=SlowData())
    forward, backward = (SLEEP if stage == name else 0.0 for name in ("forward", "backward"))
    return replace(task, model=lambda: Sleeper(forward, backward))


@pytest.mark.parametrize("stage", STAGES)
def test_the_stage_that_sleeps_is_the_one_that_takes_long(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = Stepper(slow_task(stage), Recipe(batch=4), World())
    if stage == "optimizer":
        real = stepper.training.optimizer.step
        monkeypatch.setattr(stepper.training.optimizer, "step", lambda *a, **k: (time.sleep(SLEEP), real(*a, **k))[1])
    stepper.block(4, 1, stages=True)
    found = stepper.block(4, 3, stages=True)
    assert found.stages is not None
    assert found.stages[stage] >= SLEEP
    assert max(found.stages, key=lambda name: found.stages[name]) == stage  # type: ignore[index]
    assert SLEEP <= sum(found.stages.values()) <= found.seconds


@pytest.mark.parametrize("metric", [True, False])
def test_measured_steps_are_those_of_a_training(metric: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model after the same updates, to the last bit: the clock only looks on."""
    monkeypatch.setattr("rueda.measure.steps.RATE", 0.1)
    task = tiny_task() if metric else replace(tiny_task(), metric=None)
    recipe = Recipe(batch=24, rate=0.1, model={"dropout": 0.5}, clip=1.0)
    stepper, plain = Stepper(task, recipe, World()), training(task, recipe, alone=True)
    stepper.block(24, 7, stages=True)
    for step in range(7):
        rueda.world.seeds.seed_worker(0, 0, step)
        batches = plain.next_batches()
        assert batches is not None
        plain.updater.update(batches, rate=0.1, step=step)
    assert torch.equal(parameters(stepper.training.model), parameters(plain.model))
    assert stepper.training.updater.totals.num_examples == 7 * 24


def test_all_batches_are_measured_and_the_table_is_whole() -> None:
    stepper = Stepper(tiny_task(), Recipe(batch=8), World())
    steps, largest = measure_steps(stepper, [32, 8, 16], seconds=0.3, all_of_them=True)
    assert [step.batch for step in steps] == [8, 16, 32]
    for step in steps:
        parts = step.data + step.forward + step.backward + step.optimizer
        assert parts > 0 and 0.3 * parts < step.seconds < 3 * parts and step.repeats >= 1 and step.spread >= 0
        assert step.images_per_second == step.batch / step.seconds
        assert step.peak_memory_bytes is None or step.peak_memory_bytes > 50e6
    assert largest is None or largest >= 32


def test_the_climb_ends_where_throughput_saturates() -> None:
    """Time in proportion to the batch: no batch is better than another."""

    class Proportional(Stepper):
        def block(self, batch: int, num_steps: int, *, stages: bool) -> Any:
            return replace(super().block(batch, num_steps, stages=stages), seconds=1e-3 * batch)

    stepper = Proportional(tiny_task(), Recipe(batch=8), World())
    assert list(probe_batches(stepper, [2, 4, 8, 16, 32], longest=9.0, all_of_them=False).estimates) == [2, 4, 8]
    assert list(probe_batches(stepper, [2, 4, 8, 16, 32], longest=9.0, all_of_them=True).estimates) == [2, 4, 8, 16, 32]
    assert list(probe_batches(stepper, [2, 4, 8], longest=0.003, all_of_them=False).estimates) == [2, 4]


def test_the_climb_ends_where_memory_does() -> None:
    class Small(Stepper):
        def block(self, batch: int, num_steps: int, *, stages: bool) -> Any:
            if batch > 16:
                raise torch.OutOfMemoryError("no more")
            return super().block(batch, num_steps, stages=stages)

    stepper = Small(tiny_task(), Recipe(batch=8), World())
    found = probe_batches(stepper, [8, 16, 32, 64], longest=9.0, all_of_them=True)
    assert list(found.estimates) == [8, 16] and found.full == 32


def test_a_cpu_is_never_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks of 1 MB an example on a machine of 100 MB: 64 fits, 128 is not tried."""
    seen: list[int] = []

    class Heavy(Stepper):
        def block(self, batch: int, num_steps: int, *, stages: bool) -> Any:
            seen.append(batch)
            return super().block(batch, num_steps, stages=stages)

    monkeypatch.setattr("rueda.measure.steps.peak_bytes", lambda device: 1_000_000 * seen[-1])
    monkeypatch.setattr("rueda.measure.steps.usable_bytes", lambda device: 100_000_000)
    stepper = Heavy(tiny_task(), Recipe(batch=8), World())
    steps, largest = measure_steps(stepper, [8, 16, 32, 64, 120], seconds=0.1, all_of_them=True)
    assert max(seen) == 64 and [step.batch for step in steps][-1] == 64
    assert largest == 90  # 0.9 of what there is


def test_peak_memory_sees_what_is_taken() -> None:
    device = torch.device("cpu")
    before, _ = peak_bytes(device), reset_peak(device)
    held = torch.ones(40_000_000)  # 160 MB
    after = peak_bytes(device)
    assert before is not None and after is not None and held.sum() > 0
    assert after > 160e6
    whole, usable = device_bytes(device), usable_bytes(device)
    assert whole is not None and usable is not None and 0 < usable <= whole


@pytest.mark.parametrize(
    ("num_examples", "batch", "quick", "expected"),
    [
        (8192, 64, False, [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]),
        (1000, 100, False, [3, 6, 12, 25, 50, 100, 200, 400]),
        (240, 24, True, [6, 24, 96]),
        (20, 64, True, [2, 10]),
    ],
)
def test_default_batches(num_examples: int, batch: int, quick: bool, expected: list[int]) -> None:
    assert default_batches(num_examples, batch, quick=quick) == expected


@pytest.mark.parametrize("batch", [0, -1, 241])
def test_a_batch_that_cannot_be_filled(batch: int) -> None:
    stepper = Stepper(tiny_task(), Recipe(), World())
    with pytest.raises(RecipeError, match="batch: expected from 1 to 240"):
        measure_steps(stepper, [batch], seconds=0.1)
