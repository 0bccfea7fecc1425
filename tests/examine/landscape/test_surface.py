"""Surfaces against closed forms: a quadratic, batch norm, one worker against N."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness import workers
from rueda.errors import ExamineError
from rueda.examine.landscape.directions import random_direction
from rueda.examine.landscape.grid import axis
from rueda.examine.landscape.line import lines
from rueda.examine.landscape.surface import surface
from rueda.examine.objective.objective import Objective
from rueda.tasks.models import small_cnn
from rueda.tasks.task import accuracy, cross_entropy

DOUBLE = torch.float64


def least_squares(size: int = 6, dtype: torch.dtype = DOUBLE) -> tuple[Objective, Tensor, Tensor]:
    """f(w) = mean (x w - y)^2 / 2 with H = X'X / N: the objective, H, and the minimum w*."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(40, size, generator=draws, dtype=DOUBLE)
    best = torch.randn(size, generator=draws, dtype=DOUBLE)
    model = nn.Linear(size, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(best + 0.3 * torch.randn(size, generator=draws, dtype=DOUBLE))
    objective = Objective(
        model, lambda outputs, y: 0.5 * (outputs[:, 0] - y).square(), x.to(dtype), (x @ best).to(dtype), chunk=7
    )
    return objective, x.T @ x / 40, best


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_quadratic(dtype: torch.dtype, tolerance: float) -> None:
    objective, hessian, best = least_squares(dtype=dtype)
    xs, ys = axis(-2, 2, 5), axis(-1, 3, 4)
    found = surface({"train": objective}, x=xs, y=ys, seed=5)
    one, other = (random_direction(objective.origin, seed=5, index=i)[0].double().flatten() for i in (0, 1))
    start = objective.origin[0].double().flatten()
    assert found.sheets[0].error is None and found.x == xs and found.y == ys
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            away = start + x * one + y * other - best
            assert found.sheets[0].loss[row][column] == pytest.approx(float(0.5 * away @ hessian @ away), rel=tolerance)


def test_lines_of_a_quadratic() -> None:
    objective, hessian, best = least_squares()
    found = lines({"train": objective}, num_directions=3, alphas=(-1.0, 0.5, 2.0), seed=2)
    for index in range(3):
        along = random_direction(objective.origin, seed=2, index=index)[0].flatten()
        for column, alpha in enumerate(found.alphas):
            away = objective.origin[0].flatten() + alpha * along - best
            wanted = float(0.5 * away @ hessian @ away)
            assert found.sheets[0].loss[index][column] == pytest.approx(wanted, rel=1e-12)


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 12, 12, generator=draws), torch.randint(10, (count,), generator=draws)


def objectives(batch_norm: bool = True) -> dict[str, Objective]:
    torch.manual_seed(0)
    model = small_cnn(image_size=12, width=4, batch_norm=batch_norm)
    if batch_norm:
        model(3 * images(64, 9)[0] + 1)  # statistics of its own
    train = Objective(model, cross_entropy, *images(41, 0), correct=accuracy, chunk=8)
    return {"train": train, "test": train.with_examples(*images(23, 1))}


@pytest.mark.parametrize("recalibrated", [False, True])
def test_batch_norm_nets(recalibrated: bool) -> None:
    """Each point is the model with its weights there, evaluated by torch; statistics its own, or recomputed."""
    both = objectives()
    model, inputs = both["train"].model, both["train"].inputs
    assert isinstance(inputs, Tensor)
    found = surface(both, x=(0.0, 0.5), y=(-0.5, 0.0), recalibrate_on=inputs if recalibrated else None)
    assert found.batch_norm == ("recalibrated" if recalibrated else "running")
    one, other = (random_direction(both["train"].origin, index=i) for i in (0, 1))
    start = [parameter.detach().clone() for parameter in model.parameters()]
    for row, y in enumerate(found.y):
        for column, x in enumerate(found.x):
            with torch.no_grad():
                for parameter, w, a, b in zip(model.parameters(), start, one, other, strict=True):
                    parameter.copy_(w + x * a + y * b)
                if recalibrated:
                    for module in model.modules():
                        if isinstance(module, nn.BatchNorm2d):
                            module.momentum = 1.0
                    model.train()(inputs)
                outputs = model.eval()(both["test"].inputs)
                wanted = float(cross_entropy(outputs.double(), both["test"].targets).mean())
            sheet = found.sheets[1]
            assert sheet.split == "test" and sheet.error is not None
            assert sheet.loss[row][column] == pytest.approx(wanted, rel=2e-5)
            wrong = float((outputs.argmax(1) != both["test"].targets).double().mean())
            assert sheet.error[row][column] == pytest.approx(wrong, abs=1e-12)


def small_surface() -> list[object]:
    found = surface(objectives(), x=axis(-1, 1, 5), y=axis(-1, 1, 3))
    return [(sheet.loss, sheet.error) for sheet in found.sheets]


@workers(2)
def test_two_workers_give_the_same_bits() -> None:
    from rueda.world import World, current

    assert current().size == 2
    assert small_surface() == alone(World())


@workers(3)
def test_three_workers_give_the_same_bits() -> None:
    from rueda.world import World, current

    assert current().size == 3
    assert small_surface() == alone(World())


def alone(world: object) -> list[object]:
    from rueda.examine.landscape.grid import Execution

    found = surface(objectives(), x=axis(-1, 1, 5), y=axis(-1, 1, 3), execution=Execution(world=world))  # type: ignore[arg-type]
    return [(sheet.loss, sheet.error) for sheet in found.sheets]


def test_bad_input() -> None:
    both = objectives()
    zero = [torch.zeros_like(one) for one in both["train"].origin]
    with pytest.raises(ExamineError, match="the second direction: expected a length above 0"):
        surface(both, (both["train"].origin, zero))
    with pytest.raises(ExamineError, match="tensors of shapes"):
        surface(both, ([torch.ones(2)], [torch.ones(2)]), x=(0.0, 1.0), y=(0.0, 1.0))
    with pytest.raises(ExamineError, match="expected one model, got several"):
        surface({"train": both["train"], "test": objectives()["train"]})
    with pytest.raises(ExamineError, match="1 or more directions, got 0"):
        lines(both, num_directions=0)
    with pytest.raises(ExamineError, match="2 or more points"):
        axis(-1, 1, 1)


def test_what_overflows_is_no_error() -> None:
    objective, *_ = least_squares(dtype=torch.float32)
    found = surface({"train": objective}, x=(0.0, 1e25), y=(0.0, 1.0))
    assert found.sheets[0].loss[0][1] == float("inf")
