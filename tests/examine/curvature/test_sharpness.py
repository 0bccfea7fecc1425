"""Sharpness against closed forms: the box and the ball of a quadratic, both with the model left as it was."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from examine.quadratics import DOUBLE, quadratic, rotated, spectrum_like_a_network
from harness import workers
from rueda.errors import ExamineError
from rueda.examine.curvature.sharpness import KINDS, sharpness
from rueda.examine.objective.objective import Objective

DIAGONAL = torch.tensor([4.0, 1.0, 0.3, 0.02, 7.0, 2.0], dtype=DOUBLE)
CENTRE = torch.tensor([0.1, -0.2, 0.0, 1.0, 0.05, -1.0], dtype=DOUBLE)
START = torch.tensor([0.3, -0.7, 1.0, 0.5, -2.0, 0.5], dtype=DOUBLE)


def loss_of(point: np.ndarray) -> float:
    return float(0.5 + 0.5 * (DIAGONAL.numpy() * (point - CENTRE.numpy()) ** 2).sum())


@pytest.mark.parametrize("eps", [1e-3, 5e-4, 0.1])
def test_keskars_box_of_a_diagonal(eps: float) -> None:
    # Convex and separable: each coordinate ends at the edge that lies farther from its centre.
    found = sharpness(
        quadratic(torch.diag(DIAGONAL), centre=CENTRE, start=START, offset=0.5), kinds=["keskar"], epsilons=[eps]
    ).measures[0]
    start, half = START.numpy(), eps * (np.abs(START.numpy()) + 1)
    highest = loss_of(start + half * np.sign(start - CENTRE.numpy()))
    here = loss_of(start)
    assert found.highest == pytest.approx(highest, rel=1e-6)
    assert found.value == pytest.approx(100 * (highest - here) / (1 + here), rel=1e-6)


def test_keskars_subspace_by_a_search_of_all_corners() -> None:
    size, columns, eps, seed = 12, 4, 1e-2, 3
    matrix, _ = rotated(torch.linspace(0.1, 4, size, dtype=DOUBLE))
    start = torch.linspace(-1, 2, size, dtype=DOUBLE)
    found = sharpness(
        quadratic(matrix, start=start), kinds=["keskar-subspace"], epsilons=[eps], num_columns=columns, seed=seed
    ).measures[0]
    # The maximum of a convex function over a box is at a corner, here of sixteen.
    columns_drawn = torch.randn(size, columns, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).numpy()
    half = eps * (np.abs(np.linalg.pinv(columns_drawn) @ start.numpy()) + 1)
    corners = np.array(np.meshgrid(*[[-1, 1]] * columns)).reshape(columns, -1).T * half
    points = start.numpy() + corners @ columns_drawn.T
    best = max(0.5 * point @ matrix.numpy() @ point for point in points)
    assert found.highest == pytest.approx(best, rel=1e-6)


def test_the_ball_at_a_minimum_is_the_top_eigenvalue() -> None:
    values = spectrum_like_a_network()
    zero = torch.zeros(60, dtype=DOUBLE)
    found = sharpness(quadratic(rotated(values)[0], start=zero), kinds=["sam"], rho=0.3, iterations=200).measures[0]
    assert found.converged
    assert found.value == pytest.approx(0.5 * 0.3**2 * 9.0, rel=1e-6)


def test_the_balls_first_step_is_sams() -> None:
    rho = 0.05
    found = sharpness(quadratic(torch.diag(DIAGONAL), centre=CENTRE, start=START, offset=0.5), kinds=["sam"], rho=rho)
    gradient = (DIAGONAL * (START - CENTRE)).numpy()
    stepped = loss_of(START.numpy() + rho * gradient / np.linalg.norm(gradient))
    one = found.measures[0]
    assert one.first_order == pytest.approx(stepped, rel=1e-10)
    assert one.highest >= stepped


@pytest.mark.parametrize("kind", ["sam", "adaptive"])
def test_the_ball_away_from_a_minimum(kind: str) -> None:
    # The highest point of the ball |y / t| <= rho satisfies, with z = y / t and M = T H T: (mu - M) z = T g, |z| = rho.
    rho = 0.2
    scale = START.abs().numpy() + 0.01 if kind == "adaptive" else np.ones(6)
    curved, slope = DIAGONAL.numpy() * scale**2, scale * (DIAGONAL * (START - CENTRE)).numpy()
    low, high = curved.max(), curved.max() + 2 * np.linalg.norm(slope) / rho
    for _ in range(200):
        mu = (low + high) / 2
        low, high = (mu, high) if np.linalg.norm(slope / (mu - curved)) > rho else (low, mu)
    highest = loss_of(START.numpy() + scale * slope / (high - curved))
    found = sharpness(
        quadratic(torch.diag(DIAGONAL), centre=CENTRE, start=START, offset=0.5), kinds=[kind], rho=rho,
        adaptive_rho=rho, iterations=300,
    ).measures[0]  # fmt: skip
    assert found.converged
    assert found.highest == pytest.approx(highest, rel=1e-7)


def test_only_the_adaptive_measure_survives_rescaling() -> None:
    def two_layers(factor: float) -> Objective:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False)).double()
        with torch.no_grad():  # the same function for any factor
            model[0].weight *= factor
            model[2].weight /= factor
        x = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
        return Objective(model, lambda outputs, targets: (outputs - targets).square().sum(1), x, x[:, :1] ** 2)

    plain, scaled = (sharpness(two_layers(factor), kinds=["sam", "adaptive"]).measures for factor in (1.0, 5.0))
    assert scaled[0].value > 1.5 * plain[0].value
    # Up to the offset 0.01 that lets zeros move.
    assert scaled[1].value == pytest.approx(plain[1].value, rel=0.1)


def test_all_kinds_leave_the_model_and_repeat_by_seed() -> None:
    objective = quadratic(rotated(spectrum_like_a_network())[0], offset=5.0)
    before = [one.detach().clone() for one in objective.model.parameters()]
    one, two = sharpness(objective), sharpness(objective)
    assert one.measures == two.measures
    assert [(measure.kind, measure.radius) for measure in one.measures] == [
        ("keskar", 1e-3), ("keskar", 5e-4), ("keskar-subspace", 1e-3), ("keskar-subspace", 5e-4), ("sam", 0.05),
        ("adaptive", 0.5),
    ]  # fmt: skip
    assert {measure.kind for measure in one.measures} == set(KINDS)
    assert all(measure.value > 0 and measure.highest > one.loss for measure in one.measures)
    larger, smaller = one.measures[:2]
    assert larger.value > smaller.value
    assert all(torch.equal(a, b) for a, b in zip(before, objective.model.parameters(), strict=True))


def test_a_loss_that_overflows_is_infinitely_sharp() -> None:
    class Cliff(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([709.0], dtype=DOUBLE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.exp(self.w)  # finite up to 709.78

    objective = Objective(Cliff(), lambda outputs, _: outputs, torch.ones(2, dtype=DOUBLE), torch.ones(2))
    found = sharpness(objective, kinds=["keskar", "adaptive"], epsilons=[0.1])
    assert [measure.value for measure in found.measures] == [math.inf, math.inf]
    assert not any(measure.converged for measure in found.measures)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kinds": ["flat"]}, "kinds among"),
        ({"kinds": []}, "kinds among"),
        ({"epsilons": [0.0]}, "radii above 0"),
        ({"rho": -1.0}, "radii above 0"),
        ({"iterations": 0}, "iterations and columns"),
    ],
)
def test_wrong_settings_are_one_line(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ExamineError, match=told) as caught:
        sharpness(quadratic(torch.eye(4, dtype=DOUBLE)), **wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@workers(2)
def test_two_workers_find_the_same_bits() -> None:
    from rueda.world import World

    objective = quadratic(rotated(spectrum_like_a_network())[0], offset=5.0)
    assert sharpness(objective).measures == sharpness(objective, world=World()).measures
