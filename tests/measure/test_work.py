"""The counted work of a training step, against closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from plan.profiles import profile, step
from rueda.errors import ProfileError
from rueda.measure import count_work
from rueda.measure.work import work_of
from rueda.records import Recipe
from rueda.records.profile import Profile, StepWork
from rueda.tasks.task import Task
from rueda.train.counting import count_pass, update_bytes
from rueda.train.optimizers import build_optimizer
from tinytask import clouds, tiny_task, training

B = 6
PIXELS = 10 * 10


def task_of(model: nn.Module) -> Task:
    return Task(
        name="work", model=lambda: model, train=lambda: clouds(24, 1), test=lambda: clouds(8, 2), recipe=Recipe(batch=B)
    )


# The loss is the sum of the squares of the output, which is kept beside what the layers keep.
SAVED: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    # A layer keeps its input; its weights are parameters, and do not count.
    "linear": (nn.Linear(20, 30), (20,), 20 + 30),
    "convolution": (nn.Conv2d(3, 4, 3, padding=1), (3, 10, 10), 3 * PIXELS + 4 * PIXELS),
    # The output of ReLU is kept by ReLU and, as its input, by the next layer: once.
    "shared": (nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), (20,), 20 + 30 + 5),
    # Flatten makes a view of it, which is the same memory.
    "view": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5)),
        (3, 10, 10), 3 * PIXELS + 4 * PIXELS + 5,
    ),
    # The input of batch norm is the output of the convolution, its own output that of ReLU in place.
    "batch norm": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        (3, 10, 10), 3 * PIXELS + 2 * 4 * PIXELS,
    ),
    # What no gradient needs is not kept: the input of a frozen first layer.
    "frozen": (nn.Sequential(nn.Linear(20, 30).requires_grad_(False), nn.Linear(30, 5)), (20,), 30 + 5),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_bytes_are_those_of_the_closed_form(name: str, dtype: torch.dtype) -> None:
    model, shape, numbers = SAVED[name]
    model = model.to(dtype)
    task = Task(
        name="squares", model=lambda: model, train=lambda: clouds(8, 1), test=lambda: clouds(8, 2), recipe=Recipe(),
        loss=lambda outputs, targets: (outputs**2).flatten(1).sum(1),
    )  # fmt: skip
    size = torch.empty(0, dtype=dtype).element_size()
    batch = (torch.empty(B, *shape, dtype=dtype), torch.zeros(B, dtype=torch.int64))
    counted = count_pass(task, model, batch)
    statistics = 2 * 4 if name == "batch norm" else 0  # of each channel, for the whole batch
    assert counted.saved_bytes == size * (B * numbers + statistics)
    # A real pass counts the same.
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    real = count_work(model, optimizer, lambda: (model(batch[0].zero_()) ** 2).sum(), B)
    assert real.flops == counted.flops / B
    assert real.saved_bytes == counted.saved_bytes / B


NUMBERS = 20 * 30 + 30
OPTIMIZERS: dict[str, tuple[dict[str, Any], int]] = {
    "sgd": ({"momentum": 0.0}, 0),
    "momentum": ({"optimizer": "sgd", "momentum": 0.9}, 4 * NUMBERS),
    "adam": ({}, 2 * 4 * NUMBERS + 2 * 4),  # two moments, and the number of steps of each tensor
    "adamw": ({}, 2 * 4 * NUMBERS + 2 * 4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_bytes_are_parameters_gradients_and_state(name: str) -> None:
    changes, state = OPTIMIZERS[name]
    model = nn.Linear(20, 30)
    recipe = Recipe(**{"optimizer": name, **changes})
    optimizer = build_optimizer(recipe, model)
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()
    assert update_bytes(model, optimizer) == 2 * 4 * NUMBERS + state
    frozen = nn.Sequential(model, nn.Linear(30, 5).requires_grad_(False))
    assert update_bytes(frozen, optimizer) == 2 * 4 * NUMBERS + state


def test_the_work_of_a_task_is_per_example_and_leaves_the_training_alone() -> None:
    job = training(tiny_task(), Recipe(batch=24, rate=0.1, momentum=0.9), alone=True)
    job.step()
    before = {key: value.clone() for key, value in job.model.state_dict().items()}
    found = [work_of(job, batch) for batch in (8, 24)]
    assert found[0] is not None and found[1] is not None
    assert found[0].flops == found[1].flops == 2 * (2 * 8 * 16 + 3 * 16 * 3)
    # Inputs, the output of tanh, log-probabilities; targets of 8 bytes, and one number for the whole batch.
    assert found[1].saved_bytes == pytest.approx(4 * (8 + 16 + 3) + 8, abs=4)
    assert found[0].update_bytes == 3 * 4 * (8 * 16 + 16 + 16 * 3 + 3)
    assert all(torch.equal(value, before[key]) for key, value in job.model.state_dict().items())


class Values(nn.Module):
    """Its forward pass depends on values, so that shapes alone do not suffice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x if x.sum().item() > 0 else -x)  # type: ignore[no-any-return]


def test_a_model_that_needs_values_has_no_counted_work_but_may_be_counted_in_a_real_pass() -> None:
    model = Values()
    job = training(task_of(model), Recipe(batch=B), alone=True)
    job.step()
    assert work_of(job, B) is None
    inputs, targets = torch.ones(B, 8), torch.zeros(B, dtype=torch.int64)
    found = count_work(model, job.optimizer, lambda: F.cross_entropy(model(inputs), targets), B)
    assert found.flops == 2 * 2 * 8 * 3
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ProfileError, match="examples: expected 1 or more, got 0; give the length of the batch"):
        count_work(model, job.optimizer, lambda: F.cross_entropy(model(inputs), targets), 0)


def test_a_profile_keeps_the_work_and_an_older_one_has_none(tmp_path: Path) -> None:
    work = StepWork(flops=67_608_576, saved_bytes=248_112.5, update_bytes=7_719_152)
    whole = profile([step(16, 0.01)], work=work)
    whole.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path).work == work
    older = whole.to_json().replace('"work": {', '"other": {')
    assert Profile.from_json(older).work is None
    damaged = whole.to_json().replace("67608576", "-1")
    with pytest.raises(ProfileError, match=r"profile.work.flops: expected a number, 0 or more, got -1"):
        Profile.from_json(damaged)
