"""The shapes between the stages of a pipeline: those that a pass with values has, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rueda.tasks import models
from rueda.train.parallel.known_shapes import shapes_of
from rueda.train.parallel.stages import Stage, build_stages, keep_stages, layers_of

MODELS: dict[str, tuple[nn.Module, Tensor]] = {
    "transformer with a tied embedding": (models.decoder(num_layers=3, dropout=0.1), torch.randint(0, 256, (8, 64))),
    "vision transformer": (models.vision_transformer(), torch.randn(8, 1, 28, 28)),
    "batch norm": (models.resnet(8), torch.randn(8, 3, 32, 32)),
    "frozen at first": (
        nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2)), torch.ones(8, 4),
    ),
}  # fmt: skip


class Doubles(nn.Module):
    """Returns two tensors, of which one needs no gradient."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, inputs.detach()


class Adds(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second


class ReadsValues(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[inputs > 0]


class OnTheHost(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.arange(inputs.shape[1])


def described(tensors: Sequence[Tensor]) -> list[Any]:
    return [(one.shape, one.stride(), one.dtype, one.requires_grad) for one in tensors]


def passed(stages: Sequence[Stage], value: tuple[Tensor, ...]) -> list[tuple[list[Any], list[Any]]]:
    """Return what a pass with values has, one stage after the other."""
    found = []
    for stage in stages:
        outputs = stage(*value)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        found.append((described(value), described(outputs)))
        value = tuple(one.detach().requires_grad_(one.requires_grad) for one in outputs)
    return found


def cut(model: nn.Module) -> list[Stage]:
    layers = layers_of(model)
    return build_stages(layers, [len(layers) // 2, len(layers)])


@pytest.mark.parametrize("name", MODELS)
def test_the_shapes_are_those_of_a_pass_with_values(name: str) -> None:
    model, inputs = MODELS[name]
    stages = cut(model)
    wanted = passed(stages, (inputs[:2],))
    before = {key: one.clone() for key, one in stages[0].state_dict().items()}
    random = torch.random.get_rng_state()
    keep_stages(model, stages[:1])  # those of the other one have shapes only
    found = shapes_of(stages, (inputs,), {}, 4, trains=True)
    assert found is not None
    assert [(described(one.inputs), described(one.outputs)) for one in found] == wanted
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(one, before[key]) for key, one in stages[0].state_dict().items())
    evaluated = shapes_of(stages, (inputs,), {}, 4, trains=False)
    assert evaluated is not None and not any(one.requires_grad for each in evaluated for one in each.outputs)


def test_a_stage_may_pass_several_tensors() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Doubles(), Adds(), nn.Linear(3, 2))
    found = shapes_of(cut(model), (torch.ones(8, 4),), {}, 2, trains=True)
    assert found is not None and [one.requires_grad for one in found[1].inputs] == [True, False]


def test_where_the_stages_must_tell_each_other() -> None:
    inputs = torch.ones(8, 4)
    for layer in (ReadsValues(), OnTheHost()):
        stages = cut(nn.Sequential(nn.Linear(4, 4), layer))
        assert shapes_of(stages, (inputs,), {}, 2, trains=True) is None
        assert all(one.device.type == "cpu" for stage in stages for one in stage.parameters())
    stages = cut(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert shapes_of(stages, (inputs,), {}, 3, trains=True) is None  # no equal micro-batches
    with torch.autocast("cpu", torch.bfloat16):
        assert shapes_of(stages, (inputs,), {}, 2, trains=True) is None
