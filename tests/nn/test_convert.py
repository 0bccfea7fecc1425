from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rueda.errors import RecipeError
from rueda.nn import GhostBatchNorm1d, GhostBatchNorm2d, SyncBatchNorm, apply_ghost_batch_norm, to_sync_batch_norm


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.inner = nn.ModuleDict({"norm": nn.BatchNorm2d(4, momentum=0.3, eps=0.01), "act": nn.ReLU()})
        self.twice = self.inner["norm"]
        self.head = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner["act"](self.twice(self.inner["norm"](self.conv(x)))))


def test_everything_but_the_kind_stays() -> None:
    model = Net()
    model(torch.randn(8, 1, 6, 6))
    before = copy.deepcopy(model)
    parameters = list(model.parameters())
    model.inner["norm"].eval()
    seen: list[int] = []
    model.head[1].register_forward_hook(lambda *_: seen.append(1))

    assert apply_ghost_batch_norm(model, ghost_batch=4) is model
    norm = model.inner["norm"]
    assert type(norm) is GhostBatchNorm2d and type(model.head[1]) is GhostBatchNorm1d
    assert model.twice is norm and not norm.training and model.head[1].training
    assert (norm.momentum, norm.eps, norm.ghost_batch, model.head[1].affine) == (0.3, 0.01, 4, False)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert list(model.state_dict()) == list(before.state_dict())
    x = torch.randn(8, 1, 6, 6)
    assert torch.equal(model.eval()(x), before.eval()(x)) and seen == [1]


def test_converting_again_takes_the_new_size() -> None:
    model = apply_ghost_batch_norm(apply_ghost_batch_norm(Net(), ghost_batch=4), ghost_batch=16)
    assert model.twice.ghost_batch == 16
    again = to_sync_batch_norm(to_sync_batch_norm(Net()))
    assert type(again.twice) is SyncBatchNorm


def test_a_bare_layer_is_replaced() -> None:
    assert type(apply_ghost_batch_norm(nn.BatchNorm2d(3), ghost_batch=4)) is GhostBatchNorm2d
    assert type(to_sync_batch_norm(nn.SyncBatchNorm(3))) is SyncBatchNorm


def test_a_model_without_batch_norm_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.InstanceNorm1d(2))
    assert [type(each) for each in apply_ghost_batch_norm(model, ghost_batch=4)] == [
        nn.Linear,
        nn.LayerNorm,
        nn.InstanceNorm1d,
    ]


def test_ghosts_and_shared_statistics_exclude_each_other() -> None:
    ghosts = apply_ghost_batch_norm(Net(), ghost_batch=4)
    with pytest.raises(RecipeError, match=r"to_sync_batch_norm on GhostBatchNorm2d: .* one of the two"):
        to_sync_batch_norm(ghosts)
    shared = nn.Sequential(nn.BatchNorm2d(4), to_sync_batch_norm(nn.BatchNorm2d(4)))
    with pytest.raises(RecipeError, match="apply_ghost_batch_norm on SyncBatchNorm"):
        apply_ghost_batch_norm(shared, ghost_batch=4)
    assert type(shared[0]) is nn.BatchNorm2d  # all or none


def test_lazy_layers_must_have_met_a_batch() -> None:
    lazy = nn.Sequential(nn.LazyBatchNorm2d())
    with pytest.raises(RecipeError, match="run a batch first"):
        apply_ghost_batch_norm(lazy, ghost_batch=4)
    lazy(torch.randn(4, 3, 2, 2))
    assert type(apply_ghost_batch_norm(lazy, ghost_batch=4)[0]) is GhostBatchNorm2d
