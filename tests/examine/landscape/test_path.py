"""The path's plane against a singular value decomposition, and the coordinates of what lies in a plane."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rueda.errors import ExamineError
from rueda.examine.landscape.path import path_surface, principal_directions
from rueda.examine.objective.objective import Objective


def test_principal_directions_are_those_of_an_svd() -> None:
    torch.manual_seed(0)
    points = torch.randn(7, 50, dtype=torch.float64) * torch.linspace(5, 0.1, 50, dtype=torch.float64)
    directions, coordinates, explained = principal_directions(points)
    _, values, right = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    torch.testing.assert_close((directions @ right[:2].T).abs(), torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-9)
    shares = values.square() / values.square().sum()
    assert explained == pytest.approx(shares[:2].tolist(), rel=1e-9)
    torch.testing.assert_close(coordinates, (points - points[-1]) @ directions.T)
    assert not coordinates[-1].any() and (coordinates[0] >= 0).all()


def test_a_path_in_a_plane_keeps_its_shape() -> None:
    torch.manual_seed(1)
    flat = torch.tensor([[3.0, 1.0], [2.0, 2.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    plane = torch.linalg.qr(torch.randn(20, 2, dtype=torch.float64))[0].T
    _, coordinates, explained = principal_directions(flat @ plane)
    torch.testing.assert_close(torch.cdist(coordinates, coordinates), torch.cdist(flat, flat), rtol=0, atol=1e-6)
    assert sum(explained) == pytest.approx(1.0)


def test_a_straight_path_has_a_plane_too() -> None:
    line = torch.arange(4.0).flip(0)[:, None] * torch.ones(1, 5)
    directions, coordinates, explained = principal_directions(line)
    torch.testing.assert_close(directions @ directions.T, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-9)
    assert explained[0] == pytest.approx(1.0) and coordinates[:, 1].abs().max() < 1e-9


def test_the_surface_passes_through_the_path() -> None:
    """f(w) = |w|^2: on the plane of a path that lies in it, the loss at a checkpoint's place is its own."""
    eye = torch.eye(4, dtype=torch.float64)
    model = nn.Linear(4, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    objective = Objective(model, lambda outputs, y: 4 * outputs[:, 0].square(), eye, torch.zeros(4))
    checkpoints = [[torch.tensor([row], dtype=torch.float64)] for row in ([2.0, 1, 0, 0], [1.0, 1, 0, 0], [0.0] * 4)]
    losses = [float(one[0].square().sum()) for one in checkpoints]
    found = path_surface({"train": objective}, checkpoints, [0, 10, 20], num_points=5, loss=losses)
    trail = found.trail
    assert trail is not None and trail.steps == (0, 10, 20) and trail.loss == (5.0, 2.0, 0.0)
    for x, y, loss in zip(trail.x, trail.y, trail.loss, strict=True):
        assert x * x + y * y == pytest.approx(loss, abs=1e-9)
        assert found.x[0] <= x <= found.x[-1] and found.y[0] <= y <= found.y[-1]
    for row, y in enumerate(found.y):
        for column, x in enumerate(found.x):
            assert found.sheets[0].loss[row][column] == pytest.approx(x * x + y * y, abs=1e-9)


@pytest.mark.parametrize(
    ("points", "line"),
    [(torch.ones(2, 5), "3 or more checkpoints, got 2; train with --set keep"), (torch.ones(4, 5), "that differ")],
)
def test_too_little_of_a_path(points: torch.Tensor, line: str) -> None:
    with pytest.raises(ExamineError, match=line):
        principal_directions(points)
