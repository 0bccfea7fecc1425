"""Local SGD, post-local SGD and DiLoCo against closed forms, a reference in float64, and rehearsed against real."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.records import Recipe
from rueda.tasks.task import Task
from rueda.train.parameter_exchange import ParameterExchange, fragments
from rueda.world import current
from tinytask import parameters, rehearsal, run, tiny_task, training

BASE = Recipe(
    batch=12, epochs=2, rate=0.05, precision="float64", recalibrate="never", model={"batch_norm": True, "dropout": 0.3}
)
CASES: dict[str, dict[str, Any]] = {
    "local SGD": {"sync_every": 3, "clip": 0.5},
    "DiLoCo in fragments": {"sync_every": 4, "outer_optimizer": "nesterov", "sync_fragments": 2, "optimizer": "adamw"},
    "post-local SGD": {"sync_every": 3, "sync_from_epoch": 1, "gradient_noise": 1.0},
    "streaming DiLoCo": {
        "sync_every": 4, "outer_optimizer": "nesterov", "sync_fragments": 2, "sync_delay": 3, "sync_mix": 0.25,
        "optimizer": "adamw",
    },
}  # fmt: skip


def compare(changes: dict[str, Any]) -> None:
    world = current()
    recipe = BASE.change(workers=world.size, **changes)
    task = tiny_task(12 * 11 * world.size)
    real = training(task, recipe)
    row = run(real).row
    assert len({one.sum().item() for one in world.all_gather(parameters(real.model))}) == 1
    if world.is_main:
        virtual = rehearsal(task, recipe)
        virtual_row = run(virtual).row
        assert virtual.state.step == real.state.step == 22
        assert float((parameters(virtual.model) - parameters(real.model)).abs().max()) < 1e-10
        assert row is not None and virtual_row is not None
        assert virtual_row.test_loss == pytest.approx(row.test_loss, rel=1e-10)
        for name, buffer in real.model.named_buffers():
            assert torch.allclose(virtual.model.get_buffer(name), buffer, rtol=1e-9), name
    world.barrier()


@pytest.mark.parametrize("case", CASES)
@workers(2)
def test_two_rehearsed_workers_are_two_real_ones(case: str) -> None:
    compare(CASES[case])


@pytest.mark.parametrize("case", CASES)
@workers(3)
def test_three_rehearsed_workers_are_three_real_ones(case: str) -> None:
    compare(CASES[case])


def test_parameters_averaged_at_each_update_are_data_parallel() -> None:
    plain = Recipe(batch=8, epochs=2, rate=0.1, momentum=0.0, precision="float64", workers=3)
    averaged = plain.change(outer_optimizer="nesterov", outer_rate=1.0, outer_momentum=0.0)
    first, second = (run(rehearsal(tiny_task(), one)).model for one in (plain, averaged))
    assert float((parameters(first) - parameters(second)).abs().max()) < 1e-10


def line() -> nn.Module:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def quadratic() -> Task:
    """The loss (w x - y)^2 of 8 examples: a quadratic for each worker, of which each has its own minimum."""
    inputs = torch.tensor([[1.0], [2.0]] * 4, dtype=torch.float64)
    data = rueda.Arrays(inputs, torch.arange(8, dtype=torch.float64).reshape(8, 1))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) ** 2).flatten(1).sum(1)

    return Task(
        name="quadratic", model=line, train=lambda: data, test=lambda: data, loss=loss, metric=None, recipe=Recipe()
    )


def test_local_sgd_follows_the_closed_form_of_quadratics() -> None:
    recipe = Recipe(
        workers=2, batch=4, epochs=8, rate=0.02, momentum=0.0, sync_every=4, precision="float64", scaling="none"
    )
    job = rehearsal(quadratic(), recipe)
    weight, own = 1.0, [1.0, 1.0]
    order = []
    original = job.next_batches

    def watched() -> Any:
        found = original()
        order.append([(part[0].batch[0].flatten(), part[0].batch[1].flatten()) for part in found])
        return found

    job.next_batches = watched  # type: ignore[method-assign]
    run(job)
    for number, of_workers in enumerate(order, 1):
        for rank, (x, y) in enumerate(of_workers):  # w <- w* + (1 - 2 eta mean(x^2)) (w - w*), w* = xy / x^2
            minimum = float((x * y).mean() / (x * x).mean())
            own[rank] = minimum + (1 - 2 * 0.02 * float((x * x).mean())) * (own[rank] - minimum)
        if number % 4 == 0:
            weight = sum(own) / 2
            own = [weight, weight]
    assert len(order) == 8 and parameters(job.model).item() == pytest.approx(weight, abs=1e-10)


@pytest.mark.parametrize("delay", [0, 2])
def test_the_outer_optimizer_is_that_of_the_paper(delay: int) -> None:
    """DiLoCo; with a delay streaming DiLoCo, of which a worker keeps a quarter of its own parameters."""
    generator = torch.Generator().manual_seed(0)

    def numbers() -> torch.Tensor:
        return torch.randn(5, generator=generator, dtype=torch.float64)

    weights = {"w": nn.Parameter(numbers())}
    recipe = Recipe(workers=2, sync_every=3, outer_optimizer="nesterov", sync_delay=delay, sync_mix=0.25)
    exchange = ParameterExchange(recipe, weights)
    x, momentum, own = weights["w"].detach().clone(), torch.zeros(5, dtype=torch.float64), weights["w"].detach().clone()
    sent, share = torch.zeros(5, dtype=torch.float64), 0.25 if delay else 0.0
    for update in range(1, 13):
        own, other = own - 0.1 * numbers(), numbers()
        with torch.no_grad():
            weights["w"].copy_(own)
        assert exchange.exchange(update, [weights], lambda mine, other=other: lambda: (mine[0] + other) / 2)  # type: ignore[misc]
        if update % 3 == 0:
            sent = (own + other) / 2
        if update >= 3 and update % 3 == delay % 3:
            slope = x - sent
            momentum = 0.9 * momentum + slope
            x = x - 0.7 * (slope + 0.9 * momentum)
            own = share * own + (1 - share) * x
        assert torch.allclose(weights["w"].detach(), own, rtol=1e-12, atol=1e-12)
        assert torch.allclose(exchange.anchors["w"], x, rtol=1e-12, atol=1e-12)


@workers(2)
def test_local_sgd_is_that_of_torch() -> None:
    """torch's averager counts from 0 and averages at once, so that a warm-up of H - 1 gives the updates H, 2 H, ..."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    task, world = tiny_task(12 * 11 * 2), current()
    recipe = Recipe(batch=12, epochs=1, rate=0.05, precision="float64", sync_every=3)
    job = training(task, recipe)
    model = copy.deepcopy(job.model)
    order: list[Any] = []
    original = job.next_batches

    def watched() -> Any:
        order.append(original())
        return order[-1]

    job.next_batches = watched  # type: ignore[method-assign]
    run(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    averager = PeriodicModelAverager(period=3, warmup_steps=2)
    for parts in order:
        inputs, targets = parts[0][0].batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    mean = world.all_reduce(parameters(model), "mean")
    assert len(order) == 11 and float((parameters(job.model) - mean).abs().max()) < 1e-10


def test_fragments_are_consecutive_and_about_equal() -> None:
    for sizes in ([5, 1, 1, 1, 8, 3], [1] * 10, [100, 1, 1], [1, 1, 100]):
        for count in (1, 2, 3, 7):
            found = fragments(sizes, count)
            assert [index for part in found for index in part] == list(range(len(sizes)))
            assert len(found) == min(count, len(sizes)) and all(len(part) > 0 for part in found)


@workers(2)
def test_a_resumed_training_continues_with_each_workers_own_state() -> None:
    from tempfile import mkdtemp

    world = current()
    root = Path(world.broadcast_object(mkdtemp()))
    recipe = BASE.change(
        workers=2, sync_every=5, outer_optimizer="nesterov", sync_fragments=2, sync_delay=3, keep=20
    )  # fmt: skip
    task = tiny_task(12 * 7 * 2)  # 7 updates in an epoch: it ends while an exchange is under way
    through = rueda.fit(task, recipe, folder=root / "through", progress=False)
    rueda.fit(task, recipe.change(epochs=1), folder=root / "stopped", progress=False)
    resumed = rueda.fit(task, recipe, folder=root / "stopped", resume=True, progress=False)
    assert torch.equal(parameters(through.model), parameters(resumed.model))
    world.barrier()


def test_a_rehearsal_resumes_too(tmp_path: Path) -> None:
    recipe = BASE.change(workers=3, sync_every=5, sync_delay=3)
    task = tiny_task(12 * 7 * 3)
    through = rueda.fit(task, recipe, rehearse=True, progress=False)
    rueda.fit(task, recipe.change(epochs=1), folder=tmp_path, rehearse=True, progress=False)
    resumed = rueda.fit(task, recipe, folder=tmp_path, resume=True, rehearse=True, progress=False)
    assert torch.equal(parameters(through.model), parameters(resumed.model))


@pytest.mark.parametrize(
    "changes",
    [{"adascale": True}, {"noise_scale_every": 2}, {"sync_batch_norm": True}, {"ema_decay": 0.9},
     {"on_divergence": "skip"}, {"sync_fragments": 9}, {"sync_delay": 4}, {"sync_delay": 1, "sync_mix": 1.0}],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        Recipe(workers=2, sync_every=4, **changes)


def test_too_many_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rueda.train.local_rehearsal.available_bytes", lambda: 1000)
    with pytest.raises(RecipeError, match="are free; rehearse fewer"):
        rehearsal(tiny_task(), BASE.change(workers=4, sync_every=4))


def test_a_worker_that_diverges_ends_the_training() -> None:
    result = run(rehearsal(tiny_task(), Recipe(workers=2, batch=8, epochs=3, rate=1e200, sync_every=4)))
    assert result.status == "diverged"
