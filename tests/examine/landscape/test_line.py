"""Interpolation from one model to another: its ends exactly, a quadratic between them, batch norm both ways."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rueda.errors import ExamineError
from rueda.examine.landscape.interpolation import interpolate
from rueda.examine.objective.objective import Objective
from rueda.tasks.models import small_cnn
from rueda.tasks.task import accuracy, cross_entropy


def images(count: int = 48, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 12, 12, generator=draws), torch.randint(10, (count,), generator=draws)


def network(seed: int, batch_norm: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    model = small_cnn(image_size=12, width=4, batch_norm=batch_norm)
    for _ in range(3):
        model((1 + seed) * images(64, 9)[0] + seed)  # running statistics of its own
    return model


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    with torch.no_grad():
        return float(cross_entropy(model.eval()(inputs).double(), targets).mean())


def test_a_quadratic_between_two_points() -> None:
    x = torch.eye(3, dtype=torch.float64)
    a, b = nn.Linear(3, 1, bias=False).double(), nn.Linear(3, 1, bias=False).double()
    objective = Objective(a, lambda outputs, y: outputs[:, 0].square(), x, torch.zeros(3))
    found = interpolate({"train": objective}, b.state_dict(), names=("small", "large"))
    assert (found.start, found.end, found.batch_norm, len(found.alphas)) == ("small", "large", "none", 25)
    assert (found.alphas[0], found.alphas[-1]) == (-1.0, 2.0)
    for alpha, loss in zip(found.alphas, found.sheets[0].loss[0], strict=True):
        point = (1 - alpha) * a.weight.detach() + alpha * b.weight.detach()
        assert loss == pytest.approx(float(point.square().mean()), rel=1e-12)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_ends_are_the_two_models(batch_norm: bool) -> None:
    a, b = network(0, batch_norm), network(1, batch_norm)
    inputs, targets = images()
    objective = Objective(a, cross_entropy, inputs, targets, correct=accuracy)
    found = interpolate({"train": objective}, b.state_dict(), alphas=(0.0, 0.5, 1.0))
    assert found.batch_norm == ("interpolated" if batch_norm else "none")
    first, middle, last = found.sheets[0].loss[0]
    assert first == objective.value()
    assert last == Objective(b, cross_entropy, inputs, targets).value()
    half = network(0, batch_norm)
    state = {
        name: value if not value.is_floating_point() else 0.5 * (value + b.state_dict()[name])
        for name, value in a.state_dict().items()
    }
    half.load_state_dict(state)
    assert middle == pytest.approx(loss_of(half, inputs, targets), rel=1e-5)


def test_recalibrated_statistics() -> None:
    a, b = network(0), network(1)
    inputs, targets = images()
    objective = Objective(a, cross_entropy, inputs, targets)
    found = interpolate({"train": objective}, b.state_dict(), alphas=(0.25, 1.0), recalibrate_on=objective.inputs)
    assert found.batch_norm == "recalibrated"
    for module in b.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        b.train()(inputs)
    assert found.sheets[0].loss[0][1] == pytest.approx(loss_of(b, inputs, targets), rel=2e-5)


def test_a_variance_never_goes_below_zero() -> None:
    a, b = network(0), network(1)
    with torch.no_grad():
        b[1].running_var.fill_(100.0)
    found = interpolate({"train": Objective(a, cross_entropy, *images())}, b.state_dict(), alphas=(-1.0, 0.0))
    assert all(torch.isfinite(torch.tensor(found.sheets[0].loss[0])))


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (lambda a: a.state_dict(), "the line from A to B: expected a length above 0"),
        (lambda a: network(1, batch_norm=False).state_dict(), "of the second model: expected shape"),
        (lambda a: {**a.state_dict(), "0.weight": torch.full((4, 1, 3, 3), torch.nan)}, "0.weight of B: expected fin"),
    ],
)
def test_bad_ends(end: object, line: str) -> None:
    model = network(0)
    with pytest.raises(ExamineError, match=line):
        interpolate({"train": Objective(model, cross_entropy, *images())}, end(model))  # type: ignore[operator]
