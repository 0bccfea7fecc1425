"""Compressed gradients: against torch's hooks on one bucket, closed forms, and rehearsed workers against real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.records import Recipe
from rueda.tasks import Phase
from rueda.tasks.task import Task
from rueda.train.compressed_rehearsal import RehearsedPowerSGD, RehearsedSum
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
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 20), nn.Tanh(), nn.Linear(20, 3)
    )


def wide_task(num_examples: int) -> Task:
    return Task(
        name="wide", model=wide, train=lambda: clouds(num_examples, 1), test=lambda: clouds(50, 2), recipe=Recipe()
    )


def compare(case: str) -> None:
    """Train on real and on rehearsed workers."""
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
        assert apart < 1e-10 and changed > 1e-5, (apart, changed)
    world.barrier()


@pytest.mark.parametrize("case", CASES)
@workers(2)
def test_two_rehearsed_workers_are_two_real_ones(case: str) -> None:
    compare(case)


@workers(3)
def test_three_rehearsed_workers_are_three_real_ones_with_powersgd() -> None:
    compare("PowerSGD")


@pytest.mark.parametrize(("name", "epsilon"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
@workers(3)
def test_the_halves_of_three_workers_differ_by_the_order_of_their_sum_alone(name: str, epsilon: float) -> None:
    recipe = BASE.change(workers=3, rate=1.0, momentum=0.0, gradient_compression=name)
    real, virtual = training(wide_task(36), recipe), rehearsal(wide_task(36), recipe)
    before = parameters(real.model)
    for job in (real, virtual):
        job.step()
    gradient, other = before - parameters(real.model), before - parameters(virtual.model)
    # Two additions of three numbers, each at most a few times as large as the largest mean.
    assert float((gradient - other).abs().max()) <= 4 * epsilon * float(gradient.abs().max())


@contextmanager
def all_reduced() -> Iterator[list[int]]:
    """Note the bytes of each all-reduce, also of those that PowerSGD begins in a thread of the process group."""
    sizes: list[int] = []
    own = dist.all_reduce

    def noting(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        sizes.append(tensor.nbytes)
        return own(tensor, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", noting)
        yield sizes


@workers(2)
def test_an_update_exchanges_its_gradients_once_and_compressed() -> None:
    world = current()
    plain: dict[str, Any] = {"gradient_compression": "none"}
    for changes, calls in ((plain, 1), (CASES["bf16, clipped"], 1), (POWER, 3)):
        recipe = BASE.change(workers=2, accumulate=3, **changes)
        job = training(wide_task(recipe.global_batch * 8), recipe)
        for _ in range(4):  # PowerSGD begins with the fourth update
            job.step()
        with all_reduced() as sizes:
            job.step()
        if changes is plain and world.transport != "gloo":
            assert sizes == []  # shared memory has no collective of torch's
        else:
            expected = exchanged_bytes(recipe, job.model.parameters())
            assert (len(sizes), sum(sizes)) == (calls, expected), changes
    assert exchanged_bytes(BASE.change(**CASES["bf16, clipped"]), wide().double().parameters()) * 4 == exchanged_bytes(
        BASE, wide().double().parameters()
    )


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


def two_phases() -> Task:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    phases = tuple(
        Phase(name=name, step=step, parameters=lambda model, part=part: model[part].parameters())
        for name, part in (("body", 0), ("head", 3))
    )
    return replace(wide_task(48), phases=phases)


@pytest.mark.parametrize("case", ["bf16, clipped", "PowerSGD"])
@workers(2)
def test_each_phase_compresses_the_gradients_of_its_own_parameters(case: str) -> None:
    world = current()
    recipe = BASE.change(workers=2, model={}, **CASES[case])
    real = training(two_phases(), recipe)
    for _ in range(5):
        real.step()
    if world.is_main:
        virtual = rehearsal(two_phases(), recipe)
        for _ in range(5):
            virtual.step()
        assert float((parameters(virtual.model) - parameters(real.model)).abs().max()) < 1e-10
    world.barrier()


def test_half_precision_overflows_where_torch_says() -> None:
    model = OneStep()
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
