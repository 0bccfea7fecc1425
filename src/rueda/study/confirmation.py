"""Confirm a plan before anybody pays for it: rehearse its recipe against one worker on a quarter of the epochs.

Both schedules are compressed: warm-up, milestones and cooldown keep their shares of the epochs. Each training ends with
its own cooldown, so that a recipe that diverges, or one whose long updates lose what they gained, is seen. Both make
the same share of their own training, since a plan that needs more epochs than one worker is behind it until the end.

With so few updates the values vary more than at the end, so the plan is doubted only if it is worse by more than twice
the tolerance. It is one seed, and a quarter of a training: it finds plans that will lose much (they make too few
updates, or too long ones), and cannot decide about a point or two. Where a task has validation data, these decide.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rueda.errors import RunError
from rueda.records import Recipe
from rueda.records.metric import TOLERANCE, MetricInfo
from rueda.study.planned_run import PlannedRun, execute
from rueda.study.runs import last_row

if TYPE_CHECKING:
    from rueda.tasks import Task

SHARE = 0.25
"""the smallest share of the epochs that is trained"""
UNEQUAL = 0.05
"""by how much the shares of the two trainings may differ"""
DOUBTED = 2.0
"""a plan is doubted if it is worse by more than so many times the tolerance"""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The short rehearsal of a plan beside that of one worker, at about the same share of their trainings."""

    epochs: tuple[int, int]
    """of one worker and of the planned recipe"""
    shares: tuple[float, float] = (SHARE, SHARE)
    """the shares of both trainings that were made, which whole epochs make nearly equal"""
    on_validation: bool = False
    """whether the values are those of validation data; otherwise of test data"""
    metric: MetricInfo
    one_worker: float | None
    planned: float | None
    """None: it diverged"""
    tolerance: float = TOLERANCE

    @property
    def change(self) -> float | None:
        """The difference in points, or in percent of one worker's value."""
        return self.metric.change(self.planned, self.one_worker)

    @property
    def holds(self) -> bool:
        """Whether the plan is not to be doubted.

        >>> from rueda.records.metric import ACCURACY
        >>> [Confirmation(epochs=(1, 2), metric=ACCURACY, one_worker=0.9, planned=p).holds for p in (0.89, 0.87, None)]
        [True, False, False]
        """
        if self.change is None:
            return False
        return self.metric.judge((self.change, self.change), DOUBTED * self.tolerance) == "kept"


def shortened(recipe: Recipe, epochs: int) -> Recipe:
    """Return a recipe with fewer epochs and the same shares of warm-up and milestones.

    >>> short = shortened(Recipe(epochs=20, warmup_epochs=1.0, schedule="step", milestones=(16.0,)), 2)
    >>> short.epochs, short.warmup_epochs, short.milestones
    (2, 0.1, (1.6,))
    """
    share = epochs / recipe.epochs
    return recipe.change(
        epochs=epochs, warmup_epochs=round(share * recipe.warmup_epochs, 4),
        milestones=tuple(round(share * one, 4) for one in recipe.milestones),
    )  # fmt: skip


def short_pair(one: Recipe, planned: Recipe) -> tuple[Recipe, Recipe]:
    """Return both recipes on a quarter of their epochs or a little more, at equal shares of their trainings.

    A plan with 1.4 times the epochs of one worker is behind it at any number of epochs but the last: both must have
    made the same share of their own training. Whole epochs give that share only for some lengths, so the shortest one
    from a quarter to a half is taken at which the two shares differ by at most 5 %, or else where they differ least.

    >>> [[recipe.epochs for recipe in short_pair(Recipe(epochs=12), Recipe(epochs=n))] for n in (12, 16, 17, 19)]
    [[3, 3], [3, 4], [5, 7], [5, 8]]
    >>> [recipe.epochs for recipe in short_pair(Recipe(epochs=90), Recipe(epochs=128))]
    [23, 33]
    """
    ratio = planned.epochs / one.epochs

    def unequal(few: int) -> float:
        return abs(math.log(max(1, round(few * ratio)) / (few * ratio)))

    lengths = range(math.ceil(SHARE * one.epochs), max(math.ceil(SHARE * one.epochs), one.epochs // 2) + 1)
    few = next((each for each in lengths if unequal(each) <= UNEQUAL), min(lengths, key=unequal))
    return shortened(one, few), shortened(planned, max(1, round(few * ratio)))


def confirm(
    task: Task | str, one: Recipe, planned: Recipe, *, tolerance: float = TOLERANCE, progress: bool = False
) -> Confirmation:
    """Train one worker and rehearse the planned workers, each for about a quarter of its epochs.

    Args:
        task: a name, a file, or the task itself.
        one: the recipe of one worker.
        planned: the planned recipe.
        tolerance: how much worse a result may be: 0.01 is a point, or one percent.
        progress: whether a bar or lines are shown.

    Raises:
        RunError: one worker's training failed or diverged, or the rehearsal could not be made.
    """
    recipes = short_pair(one, planned)
    with tempfile.TemporaryDirectory(prefix="rueda-confirm-") as scratch:
        folders = Path(scratch, "one-worker"), Path(scratch, "planned")
        runs = [
            PlannedRun(name=folder.name, seed=recipe.seed, recipe=recipe, folder=folder)
            for recipe, folder in zip(recipes, folders, strict=True)
        ]
        failed = execute(task, runs, 1, progress=progress, finished=lambda: None)
        if failed is not None:
            raise failed
        first, second = (last_row(folder) for folder in folders)
    if first is None or second is None or first.diverged:
        raise RunError("one worker's training diverged, so there is nothing to compare with; lower its rate")
    return Confirmation(
        epochs=(recipes[0].epochs, recipes[1].epochs), on_validation="validation" in first.figures,
        shares=(recipes[0].epochs / one.epochs, recipes[1].epochs / planned.epochs), metric=first.metric,
        one_worker=first.deciding(), planned=None if second.diverged else second.deciding(), tolerance=tolerance,
    )  # fmt: skip
