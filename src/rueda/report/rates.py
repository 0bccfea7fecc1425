"""The learning rate along a run, from the schedule of its recipe.

The rows of a run hold the rate at the end of each epoch; they show neither a warm-up within an epoch nor a milestone
between two epochs. The recipe's schedule determines the rate at every update, so the figure is drawn from it, with
exact corners. Rows that contradict the schedule (another version wrote them, or AdaScale multiplied each rate
by its measured gain) are drawn as they are instead.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rueda.errors import RecipeError
from rueda.optim.rates import adapted, build_schedule, growth_of, warmup_epochs
from rueda.optim.schedules import Schedule
from rueda.records.recipe.recipe import Recipe
from rueda.records.run import Row
from rueda.report.model import Columns, short

POINTS = 60
"""points between two corners of a curve"""
START = 1e-9
"""where curves start instead of 0, which a logarithmic axis does not have"""


def scheduled_rates(recipe: Recipe, rows: Sequence[Row]) -> Columns:
    """Return the learning rate's curve up to the last row; empty if the rows do not follow the recipe's schedule.

    Args:
        recipe: the recipe in the run folder.
        rows: the rows at the ends of epochs, in order.

    >>> recipe = Recipe(batch=64, rate=0.1, epochs=4, schedule="step", milestones=(3.2,))
    >>> row = Row(kind="epoch", epoch=4, step=400, examples=25_600, seconds=8.0, train_loss=0.1, train_accuracy=None,
    ...     images_per_second=3200.0, rate=0.01, global_batch=64)
    >>> curve = scheduled_rates(recipe, [row])
    >>> list(zip(curve["epochs"], curve["updates"], curve["rate"]))
    [(1e-09, 1e-07, 0.1), (3.2, 320.0, 0.1), (3.2, 320.0, 0.01), (4.0, 400.0, 0.01)]
    """
    import numpy as np  # not at import: most pages need no interpolation

    is_rising = all(one < other for one, other in pairwise([0, *(row.epoch for row in rows)]))
    if recipe.adascale or not rows or not is_rising:
        return {}
    recipe = adapted(recipe)
    per_epoch = max(1, rows[-1].examples // rows[-1].epoch // recipe.global_batch)
    try:
        schedule = build_schedule(recipe, per_epoch)
    except RecipeError:
        return {}
    growth = growth_of(recipe)
    factors = [1.0 if growth is None else growth.rate_factor(row.epoch - 1, row.global_batch) for row in rows]
    pairs = list(zip(rows, factors, strict=True))
    if not all(_follows(row, schedule, per_epoch, recipe.global_batch, factor) for row, factor in pairs):
        return {}
    end = float(rows[-1].epoch)
    changes = {row.epoch - 1.0 for (_, before), (row, factor) in pairwise(pairs) if factor != before}
    jumps = {warmup_epochs(recipe), *recipe.milestones, *changes}
    corners = [START, *sorted(at for at in jumps if START < at < end), end]
    epochs: list[float] = []
    for start, stop in pairwise(corners):
        epochs += [start + (stop - start) * index / POINTS for index in range(POINTS)]
        epochs.append(stop - 1e-9 * (stop - start))  # the value before a jump
    ends = [0, *(row.epoch for row in rows)]
    rates = [schedule(at * per_epoch) * factors[min(bisect(ends, at), len(rows)) - 1] for at in epochs]
    updates = np.interp(epochs, ends, [0, *(row.step for row in rows)]).tolist()
    seconds = np.interp(epochs, ends, [0, *(row.seconds for row in rows)]).tolist()
    return corners_of({"epochs": epochs, "updates": updates, "seconds": seconds, "rate": rates}, "rate")


def stairs(columns: Columns, name: str) -> Columns:
    """Return the step curve of a value that was recorded at the end of each period in which it was used.

    >>> stairs({"epochs": [1, 2, 3], "global_batch": [64, 64, 128]}, "global_batch")
    {'epochs': [1e-09, 2, 2, 3], 'global_batch': [64, 64, 128, 128]}
    """
    doubled = {}
    for key, values in columns.items():
        pairs = zip(values, values, strict=True) if key == name else zip([START, *values], values, strict=False)
        doubled[key] = [value for pair in pairs for value in pair]
    return corners_of(doubled, name)


def corners_of(columns: Mapping[str, Sequence[float | None]], name: str) -> Columns:
    """Leave out each point whose two neighbours have the same value as the point itself."""
    values = columns[name]
    kept = [
        at for at, value in enumerate(values)
        if at in (0, len(values) - 1) or not values[at - 1] == value == values[at + 1]
    ]  # fmt: skip
    return {key: [short(column[at]) for at in kept] for key, column in columns.items()}


def _follows(row: Row, schedule: Schedule, per_epoch: int, batch: int, factor: float) -> bool:
    """Return whether the rate of an epoch's last update is the schedule's times a factor, within one update."""
    last = row.epoch * per_epoch - row.global_batch / batch
    near = [factor * schedule(max(0.0, last + shift)) for shift in (-1, 0, 1)]
    return 0.99 * min(near) <= row.rate <= 1.01 * max(near) + 1e-12
