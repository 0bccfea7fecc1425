"""The noise scale of a short training: of a model whose gradients are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rueda
from rueda.measure.noise import measure_noise
from rueda.records import Recipe
from rueda.world import World
from tinytask import tiny_task


class Point(nn.Module):
    """Gives its 4 weights for every example: the gradient of <w, x> is x, whatever w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.w


def test_it_is_the_trace_of_the_covariance_over_the_square_of_the_mean() -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 4, generator=draws) * torch.tensor([1.0, 2.0, 3.0, 1.0]) + torch.tensor([0.5, 0.5, 0.5, 0.5])
    data = rueda.Arrays(x, torch.zeros(len(x)))
    task = rueda.Task(name="known", model=Point, train=data, test=data, loss=lambda outputs, _: outputs, metric=None)
    truth = float(x.var(0).sum() / x.mean(0).square().sum())  # 15 / 1, about
    found = measure_noise(task, Recipe(batch=32, rate=1e-3), World(), seconds=60, intervals=1)  # two epochs
    assert len(found) == 1 and found[0].source == "halves" and found[0].group is None
    assert found[0].low <= truth <= found[0].high
    assert found[0].value == pytest.approx(truth, rel=0.35)


def test_places_in_the_training() -> None:
    early, later = measure_noise(tiny_task(), Recipe(batch=8, rate=0.05), World(), seconds=0.2)
    assert 8 <= early.step < later.step <= 60  # two epochs of 30 steps
    assert early.steps == early.step and later.steps == later.step - early.step
    assert later.epochs == later.step * 8 / 240


def test_too_small_a_batch_tells_nothing() -> None:
    assert measure_noise(tiny_task(), Recipe(batch=2), World(), seconds=0.1) == ()


def test_a_training_that_diverges_tells_what_it_knew() -> None:
    task = rueda.load_task("linear")
    assert measure_noise(task, task.recipe.change(rate=1e12), World(), seconds=60) == ()
    assert len(measure_noise(task, task.recipe, World(), seconds=0.1)) == 2
