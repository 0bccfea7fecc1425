"""Compressed gradients: against torch's hooks on one bucket, closed forms, and rehearsed workers against real ones."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.measure.wire_bytes import WireBytes
from rueda.records import Recipe
from rueda.tasks.task import Task
from rueda.train.compressed_rehearsal import RehearsedPowerSGD
from rueda.train.gradient_compression import exchanged_bytes
from rueda.world import World, current
from tinytask import clouds, parameters, rehearsal, run, tiny_task, training

BASE = Recipe(batch=12, epochs=2, rate=0.05, precision="float64", recalibrate="never", model={"dropout": 0.3})
POWER: dict[str, Any] = {"gradient_compression": "powersgd", "powersgd_start": 3, "powersgd_rank": 2}
CASES: dict[str, dict[str, Any]] = {
    "fp16, accumulated": {"gradient_compression": "fp16", "accumulate": 2},
    "bf16, clipped": {"gradient_compression": "bf16", "clip": 0.5},
    "PowerSGD": POWER,
    "PowerSGD of rank 3": {**POWER, "powersgd_rank": 3, "optimizer": "adamw", "rate": 0.005},
}


def wide(dropout: float = 0.0) -> nn.Module:
    """Return a network with a matrix that PowerSGD compresses to rank 3, one to rank 2 at most, and vectors."""
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 20), nn.Tanh(), nn.Linear(20, 3))


def wide_task(num_examples: int) -> Task:
    return Task(
        name="wide", model=wide, train=lambda: clouds(num_examples, 1), test=lambda: clouds(50, 2), recipe=Recipe()
    )


def compare(case: str) -> None:
    """Train on real and on rehearsed workers; of two, also the halves are equal, whose sum has only one order."""
    world = current()
    recipe = BASE.change(workers=world.size, **CASES[case])
    task = wide_task(recipe.global_batch * 6)
    real = training(task, recipe)
    run(real)
    assert len({one.sum().item() for one in world.all_gather(parameters(real.model))}) == 1
    if world.is_main:
        virtual, plain = rehearsal(task, recipe), rehearsal(task, recipe.change(gradient_compression="none"))
        run(virtual)
        run(plain)
        assert virtual.state.step == real.state.step == 12
        apart = float((parameters(virtual.model) - parameters(real.model)).abs().max())
        changed = float((parameters(plain.model) - parameters(real.model)).abs().max())
        exact = world.size == 2 or recipe.gradient_compression == "powersgd"
        assert apart < (1e-10 if exact else 0.3 * changed) and changed > 1e-5, (apart, changed)
    world.barrier()


@pytest.mark.parametrize("case", CASES)
@workers(2)
def test_two_rehearsed_workers_are_two_real_ones(case: str) -> None:
    compare(case)


@pytest.mark.parametrize("case", ["bf16, clipped", "PowerSGD"])
@workers(3)
def test_three_rehearsed_workers_are_three_real_ones(case: str) -> None:
    compare(case)


@workers(2)
def test_an_update_exchanges_its_gradients_once_and_compressed() -> None:
    world = current()
    sizes = {}
    for name, changes in {"none": {"gradient_compression": "none"}, "half": CASES["bf16, clipped"], "power": POWER}.items():
        recipe = BASE.change(workers=2, accumulate=3, **changes)
        job = training(wide_task(recipe.global_batch * 8), recipe)
        for _ in range(4):  # PowerSGD begins with the fourth update
            job.step()
        with WireBytes() as wire:
            job.step()
        sizes[name] = wire.num_bytes("all-reduce")
        expected = exchanged_bytes(recipe, job.model.parameters())
        calls = {"none": 1, "half": 1, "power": 3}[name]
        if name != "none" or world.transport == "gloo":  # shared memory has no collective of torch's
            assert (wire.num_calls("all-reduce"), sizes[name]) == (calls, expected), name
    assert sizes["half"] * 4 == exchanged_bytes(BASE, wide().double().parameters())


class OneStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(30, 20)), nn.Parameter(torch.zeros(30))

    def forward(self, slope: torch.Tensor) -> torch.Tensor:
        return (self.weight * slope).sum() + (self.bias * slope[:, 0]).sum()


def test_powersgd_of_a_gradient_of_its_rank_is_exact_and_else_forgets_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    model = OneStep().double()
    named = dict(model.named_parameters())
    recipe = Recipe(workers=2, gradient_compression="powersgd", powersgd_rank=2, powersgd_start=2)
    low = torch.randn(30, 2, generator=generator).double() @ torch.randn(2, 20, generator=generator).double()
    full = [torch.randn(30, 20, generator=generator).double() for _ in range(2)]
    for slopes, exact in (([low, 3 * low], True), (full, False)):
        compressed = RehearsedPowerSGD(recipe, World(), named)
        total = torch.zeros(30, 20).double()
        for update in range(40):
            compressed.begin(2 + update)
            for slope in slopes:
                model(slope).backward()
                compressed.take()
            compressed.finish()
            assert model.weight.grad is not None and model.bias.grad is not None
            total += model.weight.grad
            mean = (slopes[0] + slopes[1]) / 2
            assert torch.allclose(model.bias.grad, mean[:, 0])
            assert torch.linalg.matrix_rank(model.weight.grad, rtol=1e-8) <= 2
            if exact:
                assert torch.allclose(model.weight.grad, mean)
            model.zero_grad()
        # What was sent and the mean of the errors are together all gradients.
        error = (compressed._errors[0]["weight"] + compressed._errors[1]["weight"]) / 2
        assert torch.allclose(total + error, 40 * mean)
        assert exact or float(error.norm()) < 15 * float(mean.norm())  # it does not grow with the updates


def resumed(changes: dict[str, Any], *, rehearse: bool = False, last: int | None = None) -> tuple[Any, Any]:
    """Train two epochs, and one of two that was stopped after the first; return both results."""
    world = current()
    root = Path(world.broadcast_object(mkdtemp()))
    recipe = BASE.change(workers=2, keep=20, **changes)
    task = wide_task(12 * 7 * 2)
    words: dict[str, Any] = {"rehearse": rehearse, "progress": False}
    through = rueda.fit(task, recipe, folder=root / "through", **words)
    rueda.fit(task, recipe.change(epochs=1), folder=root / "stopped", **words)
    again = recipe if last is None else recipe.change(workers=last)
    return through.model, rueda.fit(task, again, folder=root / "stopped", resume=True, **words).model


@pytest.mark.parametrize("case", ["fp16, accumulated", "PowerSGD"])
@workers(2)
def test_a_resumed_training_continues_exactly(case: str) -> None:
    first, second = resumed(CASES[case])
    assert torch.equal(parameters(first), parameters(second))


def test_a_resumed_rehearsal_continues_exactly_and_on_another_number_without_errors() -> None:
    first, second = resumed(POWER, rehearse=True)
    assert torch.equal(parameters(first), parameters(second))
    first, second = resumed(POWER, rehearse=True, last=3)
    assert bool(torch.isfinite(parameters(second)).all()) and not torch.equal(parameters(first), parameters(second))


@workers(2)
def test_a_program_can_still_compress_by_itself_and_phases_compress_theirs() -> None:
    from test_any_step import gan_task  # type: ignore[import-not-found]

    world = current()
    recipe = gan_task().recipe.change(workers=2, epochs=1, precision="float64", gradient_compression="bf16")
    real = training(gan_task(), recipe)
    for _ in range(2):
        real.step()
    assert all(isinstance(one._compute, DistributedDataParallel) and one._compute._comm_hooks for one in real.updaters)
    if world.is_main:
        virtual = rehearsal(gan_task(), recipe)
        for _ in range(2):
            virtual.step()
        assert float((parameters(virtual.model) - parameters(real.model)).abs().max()) < 1e-10
    world.barrier()


def test_half_precision_overflows_where_torch_says() -> None:
    model = OneStep()
    from rueda.train.compressed_rehearsal import RehearsedSum

    halves = RehearsedSum(torch.float16, 2, dict(model.named_parameters()))
    halves.begin(0)
    for value in (1e5, 1.0):
        model(torch.full((30, 20), value)).backward()
        halves.take()
    halves.finish()
    assert model.weight.grad is not None and bool(torch.isinf(model.weight.grad).all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient_compression": "zip"}, "expected one of none, fp16, bf16, powersgd"),
        ({"gradient_compression": "bf16", "adascale": True}, "adascale compares each worker's gradient"),
        ({"gradient_compression": "fp16", "noise_scale_every": 5}, "noise_scale_every compares each worker's"),
        ({"gradient_compression": "fp16", "sync_every": 4}, "gradient_compression needs gradients that are averaged"),
        ({"gradient_compression": "fp16", "parallel": "pipeline", "workers": 2}, "parallel = 'pipeline' sends its"),
        ({"gradient_compression": "powersgd", "precision": "fp16"}, "PowerSGD's error would keep it for ever"),
        ({"gradient_compression": "powersgd", "on_divergence": "skip"}, "PowerSGD's error would keep it for ever"),
        ({"powersgd_start": 1}, "give 2 or more"),
        ({"powersgd_rank": 0}, "powersgd_rank: expected a positive number"),
    ],
)
def test_what_cannot_be_compressed_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(**changes)


def test_a_scale_parameter_is_refused_with_powersgd_only() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(8, 3), nn.Parameter(torch.tensor(1.0))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(inputs) * self.scale
            return result

    task = Task(name="scaled", model=Scaled, train=lambda: clouds(48, 1), test=lambda: clouds(8, 2), recipe=Recipe())
    rehearsal(task, Recipe(workers=2, batch=4, gradient_compression="bf16"))
    with pytest.raises(RecipeError, match="but scale is a single number"):
        rehearsal(task, Recipe(workers=2, batch=4, gradient_compression="powersgd"))


def test_one_worker_has_nothing_to_compress() -> None:
    recipe = Recipe(batch=12, epochs=1)
    first, second = (run(rehearsal(tiny_task(), recipe.change(gradient_compression=one))) for one in ("none", "fp16"))
    assert torch.equal(parameters(first.model), parameters(second.model))
