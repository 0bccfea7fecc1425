from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness import workers
from rueda.errors import DataError
from rueda.nn import apply_ghost_batch_norm, needs_recalibration, recalibrate, stale, to_sync_batch_norm
from rueda.world import current


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.BatchNorm1d(48))


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 1, 6, 6, generator=generator) * size + 3 for size in (8, 5, 11, 2)]


def first_layer_inputs(model: nn.Sequential) -> Tensor:
    return torch.cat([model[0](each) for each in batches()]).detach().double()


@pytest.mark.parametrize("convert", [None, "ghosts", "sync"])
def test_statistics_are_those_of_all_the_data(convert: str | None) -> None:
    model = network()
    if convert == "ghosts":
        apply_ghost_batch_norm(model, ghost_batch=4)
    elif convert == "sync":
        to_sync_batch_norm(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    model[2].eval()
    assert recalibrate(model, [(each, "a label") for each in batches()]) == 2

    x = first_layer_inputs(model)
    torch.testing.assert_close(model[1].running_mean.double(), x.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model[1].running_var.double(), x.var((0, 2, 3)), rtol=1e-5, atol=1e-5)
    second = [
        nn.functional.batch_norm(model[0](each), None, None, model[1].weight, model[1].bias, True) for each in batches()
    ]
    flat = torch.cat(second).flatten(1).double()  # no dropout in between
    torch.testing.assert_close(model[4].running_mean.double(), flat.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model[4].running_var.double(), flat.var(0), rtol=1e-4, atol=1e-5)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"{layer}.running_{what}" for layer in (1, 4) for what in ("mean", "var")}
    assert [each.training for each in model] == [True, True, False, True, True]
    assert all(each.grad is None for each in model.parameters())


def test_after_an_error_nothing_has_changed() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError):
        recalibrate(model, [batches()[0], torch.randn(3, 2, 6, 6)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.training for each in model.modules())
    model(batches()[0])  # the layers work as before
    assert int(model[1].num_batches_tracked) == 1


def test_edges() -> None:
    model = network()
    assert recalibrate(model, []) == 0
    assert torch.equal(model[1].running_var, torch.ones(3))
    assert recalibrate(nn.Sequential(nn.Linear(2, 2)), [torch.randn(4, 2)]) == 0
    with pytest.raises(DataError, match="at least 2 values per channel, got 1"):
        recalibrate(model, [batches()[0][:1]])
    called = []
    recalibrate(model, [{"image": batches()[0]}], forward=lambda net, batch: called.append(net(batch["image"]).shape))
    assert called == [(8, 48)]


@workers(2)
def test_pooled_over_uneven_workers() -> None:
    world = current()
    mine = batches()[:3] if world.rank == 0 else batches()[3:]
    model, alone = network(), network()
    assert recalibrate(model, mine) == 2
    x = first_layer_inputs(alone)
    torch.testing.assert_close(model[1].running_mean.double(), x.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model[1].running_var.double(), x.var((0, 2, 3)), rtol=1e-5, atol=1e-5)
    wrapped = nn.parallel.DistributedDataParallel(network())
    assert recalibrate(wrapped, mine) == 2
    assert torch.equal(wrapped.module[4].running_var, model[4].running_var)


@pytest.mark.parametrize(("momentum", "num_updates", "share"), [(0.1, 0, 1.0), (0.1, 16, 0.9**16), (None, 0, 1.0)])
def test_stale_is_what_is_left_of_the_initial_value(momentum: float | None, num_updates: int, share: float) -> None:
    assert stale(momentum, num_updates) == pytest.approx(share)
    layer = nn.BatchNorm1d(1, momentum=momentum)
    for _ in range(num_updates):
        layer(torch.tensor([[-1.0], [1.0]]) * 0.0)  # variance 0, so what is left of 1 is the initial value
    assert layer.running_var is not None
    assert layer.running_var.item() == pytest.approx(share, rel=1e-5)


def test_the_rule_counts_ghosts_as_updates() -> None:
    model = apply_ghost_batch_norm(network(), ghost_batch=8)
    assert needs_recalibration(model, 16)
    assert not needs_recalibration(model, 16, local_batch=64)
    assert not needs_recalibration(nn.Linear(2, 2), 0)
    assert not needs_recalibration(nn.BatchNorm1d(2, track_running_stats=False), 0)
