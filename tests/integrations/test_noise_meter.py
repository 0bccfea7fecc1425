"""The noise scale in loops of others: equal to the formulas, on one worker and on two, without changing a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness import workers
from rueda.errors import RecipeError
from rueda.integrations import NoiseMeter
from rueda.optim.noise_scale import Estimator
from rueda.world import current


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def make_inputs(num_updates: int, num_parts: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(num_updates, num_parts, 6, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    return loss


def gradient(model: nn.Module, inputs: Tensor) -> Tensor:
    return torch.cat([found.ravel() for found in torch.autograd.grad(loss_of(model, inputs), list(model.parameters()))])


def expected_estimator(inputs: Tensor) -> Estimator:
    """Compute each part's gradient by itself, and the mean of them."""
    model, estimator = make_model(), Estimator(200)
    for parts in inputs:
        found = torch.stack([gradient(model, part) for part in parts])
        local, mean = float(found.square().sum()), float(found.mean(0).square().sum())
        estimator.observe(local, mean, num_parts=len(parts), examples_per_part=inputs.shape[2])
    return estimator


def measure(
    model: nn.Module, inputs: Tensor, *, every: int = 1, scale: float = 1.0
) -> tuple[NoiseMeter, list[Tensor | None]]:
    meter, gradients = NoiseMeter(model, every=every), []
    for step, parts in enumerate(inputs):
        meter.begin(step)
        for part in parts:
            (scale * loss_of(model, part) / len(parts)).backward()
            meter.part(len(part))
        meter.end(step, loss_scale=scale)
        gradients += [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
    return meter, gradients


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_micro_batches_give_the_formula(scale: float) -> None:
    inputs = make_inputs(5, 3)
    meter, _ = measure(make_model(), inputs, scale=scale)
    expected = expected_estimator(inputs).estimate(step=5)
    assert meter.current is not None and meter.current.source == "micro-batches"
    assert (meter.current.value, meter.current.low) == pytest.approx((expected.value, expected.low), rel=1e-10)
    assert meter.figures()["noise_scale"] == meter.current.value


def test_a_meter_changes_no_gradient() -> None:
    inputs, model = make_inputs(3, 2), make_model()
    _, measured = measure(make_model(), inputs)
    plain = []
    for parts in inputs:
        for part in parts:
            (loss_of(model, part) / len(parts)).backward()
        plain += [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
    for mine, theirs in zip(measured, plain, strict=True):
        assert mine is not None and theirs is not None and torch.equal(mine, theirs)


def test_every_second_update_and_its_state() -> None:
    inputs = make_inputs(6, 2)
    meter, _ = measure(make_model(), inputs, every=2)
    assert meter.current is not None and meter.current.steps == 3 and meter.current.step == 6
    expected = expected_estimator(inputs[1::2])
    assert meter.current.value == pytest.approx(expected.estimate(step=6).value, rel=1e-10)
    again = NoiseMeter(make_model())
    again.load_state_dict(meter.state_dict())
    assert again.state_dict() == meter.state_dict()


def test_what_cannot_be_compared_is_not_measured() -> None:
    model = make_model()
    meter = NoiseMeter(model)
    for sizes in ((6,), (6, 4)):  # one part alone; the smaller last batch of an epoch
        meter.begin(0)
        for size in sizes:
            (loss_of(model, torch.ones(size, 5, dtype=torch.float64)) / len(sizes)).backward()
            meter.part(size)
        assert meter.end(0) is None and meter.figures() == {}
    with pytest.raises(RecipeError, match="every: expected 1 or more"):
        NoiseMeter(model, every=0)


def test_a_closed_meter_measures_nothing() -> None:
    model = make_model()
    meter = NoiseMeter(model)
    meter.close()
    meter.begin(0)
    loss_of(model, torch.ones(2, 5, dtype=torch.float64)).backward()
    meter.part(2)
    assert meter.end(0) is None


@workers(2)
def test_workers_give_the_formula() -> None:
    world, inputs = current(), make_inputs(4, 2)
    meter, _ = measure(world.wrap(make_model()), inputs[:, world.rank : world.rank + 1])
    expected = expected_estimator(inputs).estimate(step=4)
    assert meter.num_workers == 2
    assert meter.current is not None and meter.current.source == "workers"
    assert (meter.current.value, meter.current.low) == pytest.approx((expected.value, expected.low), rel=1e-10)


@workers(2)
def test_accumulation_needs_one_exchange() -> None:
    world, inputs = current(), make_inputs(1, 2)
    model = world.wrap(make_model())
    with pytest.raises(RecipeError, match=r"within model.no_sync\(\)"):
        measure(model, inputs)


@workers(2)
def test_a_second_hook_is_refused() -> None:
    model = current().wrap(make_model())
    NoiseMeter(model)
    with pytest.raises(RecipeError, match="without a communication hook"):
        NoiseMeter(model)
