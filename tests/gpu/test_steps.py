"""No part of a training step waits for the device, launches stay few, and the numbers are those of the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from gpu.bench import on_impostor
from harness import workers
from rueda.nn import GhostBatchNorm2d, to_sync_batch_norm
from rueda.optim import LAMB, LARC, LARS, NonFiniteError, NovoGrad, parameter_groups
from rueda.optim.meters import PartsMeter, layer_groups
from rueda.optim.noise import noise_weights

DEVICE = torch.device("cuda", 1)
ALL: dict[str, Callable[..., Optimizer]] = {
    "lars": lambda groups, **options: LARS(groups, lr=0.1, **options),
    "lars-clipped": lambda groups, **options: LARS(groups, lr=0.1, form="clipped", nesterov=True, **options),
    "lamb": lambda groups, **options: LAMB(groups, lr=0.1, **options),
    "lamb-clip": lambda groups, **options: LAMB(groups, lr=0.1, max_grad_norm=1.0, phi=(0.1, 2.0), **options),
    "novograd": lambda groups, **options: NovoGrad(groups, lr=0.1, **options),
    "larc": lambda groups, **options: LARC(torch.optim.SGD(groups, lr=0.1, momentum=0.9, foreach=True), **options),
}


class ClippedAdamW(AdamW):
    """AdamW with the clipping by all gradients' norm that LAMB's ``max_grad_norm`` is."""

    def step(self, closure: Any = None) -> None:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0, foreach=True)
        super().step()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(20) for layer in (nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))])


def fill(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype).to(p.device)


def stepped(make: Callable[..., Optimizer], device: torch.device, dtype: torch.dtype, **options: Any) -> Tensor:
    model = network().to(device, dtype).to(memory_format=torch.channels_last)
    optimizer = make(parameter_groups(model, weight_decay=0.01), **options)
    for step in range(4):
        fill(model, step)
        optimizer.step()
    return torch.cat([p.detach().cpu().double().flatten() for p in model.parameters()])


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("name", ALL)
@on_impostor()
def test_no_optimizer_waits_and_its_launches_are_few(name: str, nonfinite: str) -> None:
    from gpu.recorder import Recorder

    def record(make: Callable[..., Optimizer], **options: Any) -> Recorder:
        model = network().to(DEVICE)
        optimizer = make(parameter_groups(model, weight_decay=0.01), **options)
        for step in range(3):  # the first step creates the state, and copies constants to the device
            fill(model, step)
            with Recorder() as found:
                optimizer.step()
        return found

    found = record(ALL[name], nonfinite=nonfinite)
    assert not found.waits
    adamw = record(ClippedAdamW if name == "lamb-clip" else AdamW, foreach=True)
    assert found.num_kernels <= 2 * adamw.num_kernels, (found.kernels, adamw.kernels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ALL)
@on_impostor()
def test_steps_have_the_numbers_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    found, expected = (stepped(ALL[name], device, dtype) for device in (DEVICE, torch.device("cpu")))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert torch.allclose(found, expected, rtol=0.0, atol=tolerance), float((found - expected).abs().max())


@pytest.mark.parametrize("name", ALL)
@on_impostor()
def test_a_gradient_that_is_not_finite_is_reported_one_step_late(name: str) -> None:
    model = network().to(DEVICE)
    optimizer = ALL[name](parameter_groups(model, weight_decay=0.01))
    fill(model, 0)
    optimizer.step()
    kept = model[0].weight.detach().clone()
    fill(model, 1)
    model[0].weight.grad[0, 0, 0, 0] = math.nan
    optimizer.step()
    if name != "larc":  # which passes zeros on, so that the momentum still moves the weights
        assert torch.equal(model[0].weight.cpu(), kept.cpu())
    assert all(p.isfinite().all() for p in model.parameters())
    fill(model, 2)
    with pytest.raises(NonFiniteError, match=r"1 tensor\(s\), first 0\.weight \(8x8x3x3\)"):
        optimizer.step()
    optimizer.step()  # it was reported
    optimizer.raise_late()  # type: ignore[attr-defined]
    model[2].bias.grad[0] = math.inf
    optimizer.step()
    with pytest.raises(NonFiniteError, match=r"first 2\.bias"):
        optimizer.raise_late()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ALL)
@on_impostor()
def test_a_step_of_fake_tensors_needs_no_value(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), DEVICE:  # a value that the host asks for raises an error
        model = network()
        optimizer = ALL[name](parameter_groups(model, weight_decay=0.01))
        for p in model.parameters():
            p.grad = torch.empty_like(p)
        optimizer.step()


def passed(layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    y = layer(x)
    (y * torch.arange(y.numel(), device=y.device).view_as(y).to(y).cos()).sum().backward()
    found = [y, x.grad, *(p.grad for p in layer.parameters()), *layer.buffers()]
    return tuple(each.detach().double().cpu() for each in found if each is not None)


@pytest.mark.parametrize("num_examples", [32, 30])  # 30: the last ghost is smaller
@on_impostor()
def test_ghost_batch_norm_does_not_wait(num_examples: int) -> None:
    from gpu.recorder import Recorder

    torch.manual_seed(0)
    x = torch.randn(num_examples, 4, 5, 5)
    host, device = (GhostBatchNorm2d(4, ghost_batch=8).to(place) for place in ("cpu", DEVICE))
    expected = passed(host, x)
    x = x.to(DEVICE)
    found = passed(device, x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    x.requires_grad_()
    with Recorder() as record:
        device(x).sum().backward()
    assert not record.waits
    if num_examples == 32:
        assert record.num_kernels <= 30, record.kernels


@on_impostor(workers=2)
def test_synchronised_batch_norm_does_not_wait() -> None:
    from gpu.recorder import Recorder
    from rueda.world import current

    world = current()
    torch.manual_seed(world.rank)
    layer = to_sync_batch_norm(nn.BatchNorm2d(4)).to(world.device)
    x = torch.randn(8, 4, 5, 5, device=world.device, requires_grad=True)
    with Recorder() as record:
        layer(x).sum().backward()
    assert not {key: count for key, count in record.waits.items() if "sync_batch_norm" in key[0]}


@workers(2)
def test_synchronised_batch_norm_still_refuses_one_value() -> None:
    from rueda.errors import DataError
    from rueda.world import current

    layer = to_sync_batch_norm(nn.BatchNorm1d(4))
    with pytest.raises(DataError, match="at least 2 values per channel, got 1"):
        layer(torch.ones(1 if current().rank == 0 else 0, 4))
    assert layer(torch.ones(1 + current().rank, 4)).shape == (1 + current().rank, 4)


@on_impostor()
def test_noise_and_its_scale_do_not_wait() -> None:
    from gpu.recorder import Recorder

    model = network().to(DEVICE)
    meters = [PartsMeter(model.parameters(), groups) for groups in (None, layer_groups(model))]
    for turn in range(2):
        with Recorder() as record:
            weights = noise_weights(8, 0.5, seed=0, step=turn, device=DEVICE)
            for meter in meters:
                for part in range(2):
                    for p in model.parameters():
                        p.grad = torch.full_like(p, part + 1.0)
                    meter.take(4)
                meter.finish()
    assert not record.waits
    assert torch.equal(weights.cpu(), noise_weights(8, 0.5, seed=0, step=1))
