from __future__ import annotations

import torch
from torch import nn

from rueda.optim import LAMB, parameter_groups


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.norm = nn.LayerNorm([3, 4])  # two-dimensional, and still a norm
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight  # shared
        self.scale = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.ones(2, 2))
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)


def test_who_is_in_and_who_is_left_out():
    model = Net()
    inside, outside = parameter_groups(model, weight_decay=0.1, lr=0.5)
    assert inside["param_names"] == ["embedding.weight", "attention.in_proj_weight", "attention.out_proj.weight"]
    assert inside["weight_decay"] == 0.1 and inside["adapt"] is True
    left = {"scale", "bias", "norm.weight", "norm.bias", "attention.in_proj_bias", "attention.out_proj.bias"}
    assert set(outside["param_names"]) == left
    assert outside["weight_decay"] == 0.0 and outside["adapt"] is False
    assert inside["lr"] == outside["lr"] == 0.5
    named = dict(model.named_parameters())
    for group in (inside, outside):
        assert all(named[name] is p for name, p in zip(group["param_names"], group["params"], strict=True))


def test_further_exclusions_and_empty_groups():
    model = nn.Linear(2, 2, bias=False)
    assert len(parameter_groups(model)) == 1
    (only,) = parameter_groups(model, weight_decay=1.0, exclude=lambda name, p: name == "weight")
    assert only["weight_decay"] == 0.0
    assert parameter_groups(nn.ReLU()) == []


def test_every_optimizer_takes_them():
    model = Net()
    for optimizer in (LAMB(parameter_groups(model)), torch.optim.AdamW(parameter_groups(model, weight_decay=0.1))):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
