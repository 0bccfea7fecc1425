"""The training path in the plane of its largest variance.

Li et al. 2018 (1712.09913), section 7: two random directions are nearly orthogonal to any path in so many dimensions
and show a point that hardly moves. The two first principal components of the checkpoints w_0 ... w_n show where it
went. With the differences to the end, D = [w_0 - w_n, ..., w_n - w_n], centred, the components are the leading
eigenvectors of D^T D; they come from the small matrix D D^T [n, n] (its eigenvectors, times D^T), so the cost is that
of n^2 scalar products. Path and surface have the end, w_n, as their origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.landscape.grid import Execution, Objectives, axis
from rueda.examine.landscape.surface import surface
from rueda.examine.objective.examples import Inputs
from rueda.records.landscape import Surface, TrainingPath

MARGIN = 0.25
"""how far the surface extends beyond the path, as a fraction of the path's length"""


def principal_directions(points: Tensor) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """Find the two directions in which points differ most.

    Args:
        points: [n, P], the last one being the origin.

    Returns:
        Two orthonormal directions [2, P], the points' coordinates [n, 2] from the last one, and the shares of their
        variance.

    >>> points = torch.tensor([[4.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    >>> directions, coordinates, explained = principal_directions(points)
    >>> coordinates.abs().round(decimals=3) + 0.0
    tensor([[4., 0.],
            [2., 1.],
            [0., 0.]], dtype=torch.float64)
    >>> [round(share, 3) for share in explained]
    [0.923, 0.077]
    """
    if len(points) < 3:
        do = "train with --set keep=100, or --set checkpoint_every=N"
        raise ExamineError("the training path", expected="3 or more checkpoints", got=len(points), do=do)
    differences = points.double() - points[-1].double()
    centred = differences - differences.mean(0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)  # ascending
    if values[-1] <= 0:
        raise ExamineError(
            "the training path", expected="checkpoints that differ", got="equal ones", do="check the run"
        )
    total = float(values.clamp_min(0).sum())
    explained = (float(values[-1]) / total, max(0.0, float(values[-2])) / total)
    first = centred.T @ vectors[:, -1]
    first /= first.norm()
    if explained[1] > 1e-12:
        second = centred.T @ vectors[:, -2]
    else:  # a straight path: any direction across it will do
        second = torch.zeros_like(first)
        second[int(first.abs().argmin())] = 1.0
    second -= (second @ first) * first
    second /= second.norm()
    directions = torch.stack([first, second])
    # An eigenvector has no sign: let the path begin at positive coordinates.
    coordinates = differences @ directions.T
    signs = torch.where(coordinates[0] < 0, -1.0, 1.0)
    return directions * signs[:, None], coordinates * signs, explained


def path_surface(
    objectives: Objectives,
    checkpoints: Sequence[Sequence[Tensor]],
    steps: Sequence[int],
    *,
    num_points: int = 51,
    loss: Sequence[float] = (),
    rebuilt_start: bool = False,
    recalibrate_on: Inputs | None = None,
    execution: Execution | None = None,
) -> Surface:
    """Evaluate the surface in the plane of the path, around its end, with the path on it.

    Args:
        objectives: by split, on the last checkpoint's model.
        checkpoints: the parameters of each checkpoint, oldest first; the last must be the objectives' model.
        steps: the number of updates of each checkpoint.
        num_points: points of each axis.
        loss: the training loss of each checkpoint, if known.
        rebuilt_start: whether the first checkpoint was rebuilt from the seed.
        recalibrate_on: inputs over which batch-norm statistics are recomputed at each point: with batch norm, the
            statistics of the last model say little about the first.
        execution: which workers compute.
    """
    first = next(iter(objectives.values()))
    points = torch.stack([first.flatten(one).cpu() for one in checkpoints])
    directions, coordinates, explained = principal_directions(points)
    x, y = (_axis(coordinates[:, column], num_points) for column in (0, 1))
    split = [[part.to(first.device) for part in first.split(direction)] for direction in directions]
    found = surface(
        objectives, (split[0], split[1]), x=x, y=y, recalibrate_on=recalibrate_on, execution=execution,
        told="principal components of the training path",
    )  # fmt: skip
    trail = TrainingPath(
        steps=tuple(steps), x=tuple(coordinates[:, 0].tolist()), y=tuple(coordinates[:, 1].tolist()),
        explained=explained, loss=tuple(loss), rebuilt_start=rebuilt_start,
    )  # fmt: skip
    return replace(found, trail=trail)


def _axis(values: Tensor, num_points: int) -> tuple[float, ...]:
    low, high = float(values.min()), float(values.max())
    reach = MARGIN * (high - low) or 1.0
    return axis(low - reach, high + reach, num_points)
