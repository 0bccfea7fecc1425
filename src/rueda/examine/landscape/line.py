"""The loss along lines: f(w + alpha d) for random directions d, the cheapest way to compare two minima."""

from __future__ import annotations

from collections.abc import Sequence

from rueda.errors import ExamineError
from rueda.examine.landscape.directions import direction_words, random_direction
from rueda.examine.landscape.grid import Execution, Objectives, axis, measure, to_sheets
from rueda.examine.objective.examples import Inputs
from rueda.examine.objective.objective import checksum
from rueda.records.landscape import Lines


def lines(
    objectives: Objectives,
    *,
    num_directions: int = 1,
    alphas: Sequence[float] | None = None,
    seed: int = 0,
    normalise: str = "filter",
    recalibrate_on: Inputs | None = None,
    execution: Execution | None = None,
) -> Lines:
    """Evaluate lines through the model as it is.

    Args:
        objectives: by split, all on one model.
        num_directions: how many random directions; the first two of a seed are those of its surface.
        alphas: steps along each direction; by default 51 in [-1, 1].
        seed: the seed of the directions.
        normalise: how directions are normalised: by ``filter``, by ``layer`` or ``none``.
        recalibrate_on: inputs over which batch-norm statistics are recomputed at each point.
        execution: which workers compute.
    """
    if num_directions < 1:
        raise ExamineError("lines", expected="1 or more directions", got=num_directions, do="correct it")
    first = next(iter(objectives.values()))
    steps = tuple(float(value) for value in (alphas or axis(-1.0, 1.0, 51)))
    drawn = [random_direction(first.origin, seed=seed, index=i, normalise=normalise) for i in range(num_directions)]
    values = measure(
        objectives,
        num_directions * len(steps),
        lambda index: first.move([drawn[index // len(steps)]], [steps[index % len(steps)]]),
        key=("lines", *(checksum(one) for one in drawn), steps),
        execution=execution,
        description="lines",
        recalibrate_on=recalibrate_on,
    )
    return Lines(
        alphas=steps,
        sheets=to_sheets(values, len(steps)),
        directions=direction_words(normalise, seed),
        batch_norm="running" if recalibrate_on is None else "recalibrated",
    )
