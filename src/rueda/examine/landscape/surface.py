"""The loss surface: f(w + x d1 + y d2) over a grid, around a trained model.

Li et al. 2018 (1712.09913): two filter-normalised random directions, x and y in [-1, 1], 51 x 51 points. Flat and sharp
minima can be compared because each filter's step is in proportion to the filter itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rueda.examine.landscape.directions import check_direction, cosine, direction_words, random_direction
from rueda.examine.landscape.grid import Execution, Objectives, axis, measure, to_sheets
from rueda.examine.objective.examples import Inputs
from rueda.examine.objective.objective import checksum
from rueda.records.landscape import Surface


def surface(
    objectives: Objectives,
    directions: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    *,
    x: Sequence[float] | None = None,
    y: Sequence[float] | None = None,
    seed: int = 0,
    normalise: str = "filter",
    recalibrate_on: Inputs | None = None,
    told: str = "given",
    execution: Execution | None = None,
) -> Surface:
    """Evaluate a surface around the model as it is.

    Args:
        objectives: by split, all on one model.
        directions: two directions; by default random ones.
        x: steps along the first direction; by default 51 in [-1, 1].
        y: steps along the second direction.
        seed: the seed of random directions.
        normalise: how random directions are normalised: by ``filter``, by ``layer`` or ``none``.
        recalibrate_on: training inputs over which batch-norm statistics are recomputed at each point; by default the
            model's own are used everywhere, as Li et al. do.
        told: how the record describes the given directions.
        execution: which workers compute; by default those of this process.

    >>> import torch
    >>> from rueda.examine.objective.objective import Objective
    >>> model = torch.nn.Linear(2, 1, bias=False).double()
    >>> _ = model.weight.data.zero_()
    >>> eye = torch.eye(2, dtype=torch.float64)  # f(w) = (w1^2 + w2^2) / 2
    >>> objective = Objective(model, lambda out, y: (out - y).square().sum(1), eye, torch.zeros(2, 1).double())
    >>> axes = [torch.tensor([[1.0, 0.0]])], [torch.tensor([[0.0, 1.0]])]
    >>> surface({"train": objective}, axes, x=(0.0, 1.0), y=(0.0, 2.0)).sheets[0].loss
    ((0.0, 0.5), (2.0, 2.5))
    """
    first = next(iter(objectives.values()))
    if directions is None:
        one, other = (random_direction(first.origin, seed=seed, index=i, normalise=normalise) for i in (0, 1))
        told = direction_words(normalise, seed)
    else:
        one, other = (list(direction) for direction in directions)
        check_direction(one, "the first direction")
        check_direction(other, "the second direction")
    xs, ys = (tuple(float(value) for value in (given or axis(-1.0, 1.0, 51))) for given in (x, y))
    values = measure(
        objectives,
        len(xs) * len(ys),
        lambda index: first.move((one, other), (xs[index % len(xs)], ys[index // len(xs)])),
        key=("surface", checksum([*one, *other]), xs, ys),
        execution=execution,
        description="surface",
        recalibrate_on=recalibrate_on,
    )
    return Surface(
        x=xs, y=ys, sheets=to_sheets(values, len(xs)), directions=told,
        cosine=cosine(one, other), batch_norm="running" if recalibrate_on is None else "recalibrated",
    )  # fmt: skip
