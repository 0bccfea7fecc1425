"""The conditions of a study: named recipes, each on its own, and some of them combined.

A name joined by ``+`` applies the named changes one after the other: ``batch-norm+linear-warmup``. With ``one-worker``
among them it is a control: one worker with the other changes, so that a gain of the technique itself is not taken for
one of its effect on large batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rueda.errors import RecipeError, TaskError
from rueda.records import Recipe
from rueda.records.recipe.named import NAMED, named_recipe
from rueda.records.study import BASELINE

if TYPE_CHECKING:
    from rueda.tasks import Task

COMBINATIONS = (
    "one-worker+batch-norm",
    "batch-norm+linear-warmup",
    "batch-norm+sqrt-scaling",
    "batch-norm+lamb",
    "batch-norm+batch-growth",
    "ghost-batch-norm+linear-warmup",
)
"""run by default beside every named recipe on its own"""


@dataclass(frozen=True)
class Condition:
    """A row of the table before it is run."""

    name: str
    summary: str
    recipe: Recipe


def condition(name: str, base: Recipe, workers: int) -> Condition:
    """Make a condition from the recipe with which one worker trains well.

    >>> both = condition("batch-norm + linear-warmup", Recipe(epochs=12), workers=8)
    >>> both.name, both.recipe.workers, both.recipe.scaling, dict(both.recipe.model)
    ('batch-norm+linear-warmup', 8, 'linear', {'batch_norm': True})
    >>> condition("one-worker+batch-norm", Recipe(), workers=8).recipe.workers
    1
    """
    parts = [part.strip() for part in name.split("+")]
    workers = 1 if BASELINE in parts else workers
    recipe = base
    for part in parts:
        try:
            recipe = named_recipe(part, recipe, workers)
        except RecipeError as error:
            raise RecipeError(f"row {name}: {error}") from None
    return Condition("+".join(parts), "; ".join(NAMED[part].summary for part in parts), recipe)


def conditions(
    task: Task, base: Recipe, workers: int, names: Sequence[str] | None = None
) -> tuple[list[Condition], list[str]]:
    """Make the conditions of a study, and lines about those that do not fit the task.

    Args:
        task: what is trained; its model may lack what a technique needs, such as ``batch_norm``.
        base: one worker's recipe.
        workers: how many workers all rows but the controls have.
        names: the rows; by default all named recipes and :data:`COMBINATIONS`. What was named must fit; of the
            default rows, those that do not are left out.
    """
    from rueda.train.normalisation import convert

    if names is not None and not names:
        raise RecipeError("rows", expected="a named recipe or more", got=list(names), do="see `rueda recipe list`")
    asked = list(names) if names is not None else [*NAMED, *COMBINATIONS]
    found: dict[str, Condition] = {}
    left_out = []
    for name in asked:
        try:
            one = condition(name, base, workers)
            convert(task.build(one.recipe), one.recipe)
        except (RecipeError, TaskError) as error:
            if names is not None:
                prefix = "" if str(error).startswith(f"row {name}:") else f"row {name}: "
                raise type(error)(f"{prefix}{error}") from None
            left_out.append(f"{name} is left out: {error}")
            continue
        found[one.name] = one
    return list(found.values()), left_out
