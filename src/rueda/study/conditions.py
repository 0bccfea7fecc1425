"""The conditions of a study: every named recipe on its own, and some of them combined.

A name such as ``batch-norm+linear-warmup`` applies the changes of both recipes, one after the other. A part such as
``sync_every=64`` sets a field of the recipe. A condition with ``one-worker`` among its parts is a control: it trains
one worker with the other changes. It distinguishes a technique that helps any training from one that helps only with
large batches.
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
    "one-worker+decay",
    "one-worker+batch-norm+decay",
    "batch-norm+linear-warmup",
    "batch-norm+sqrt-scaling",
    "batch-norm+lamb",
    "batch-norm+batch-growth",
    "ghost-batch-norm+linear-warmup",
)
"""combinations that are trained by default, in addition to every named recipe"""


def default_rows() -> list[str]:
    """List the rows of a study that names none: every named recipe of many workers, and :data:`COMBINATIONS`."""
    return [*(name for name, one in NAMED.items() if not one.is_control), *COMBINATIONS]


@dataclass(frozen=True)
class Condition:
    """A row of the table: its name and the recipe that it is trained with."""

    name: str
    summary: str
    recipe: Recipe


def condition(name: str, base: Recipe, workers: int) -> Condition:
    """Derive a condition from the base recipe, with which one worker trains well.

    >>> both = condition("batch-norm + linear-warmup", Recipe(epochs=12), workers=8)
    >>> both.name, both.recipe.workers, both.recipe.scaling, dict(both.recipe.model)
    ('batch-norm+linear-warmup', 8, 'linear', {'batch_norm': True})
    >>> condition("one-worker+batch-norm", Recipe(), workers=8).recipe.workers
    1
    >>> decayed = condition("one-worker+decay", Recipe(epochs=12), workers=8).recipe
    >>> decayed.workers, decayed.milestones, decayed.decay  # a batch that grows to that of 8 doubles thrice
    (1, (3.0, 6.0, 9.0), 0.5)
    >>> rare = condition("diloco+sync_every=8", Recipe(), workers=8)
    >>> rare.recipe.outer_optimizer, rare.recipe.sync_every, rare.recipe.workers
    ('nesterov', 8, 8)
    """
    parts = [part.strip() for part in name.split("+")]
    own = 1 if BASELINE in parts else workers
    recipe = base.change(workers=own)
    for part in parts:
        is_control = part in NAMED and NAMED[part].is_control
        try:
            if "=" in part:
                recipe = _with_setting(recipe, part)
            else:
                recipe = named_recipe(part, recipe, workers if is_control else own).change(workers=own)
        except RecipeError as error:
            raise RecipeError(f"row {name}: {error}") from None
    summary = "; ".join(NAMED[part].summary if part in NAMED else part.replace("=", " = ", 1) for part in parts)
    return Condition("+".join(parts), summary, recipe)


def _with_setting(recipe: Recipe, setting: str) -> Recipe:
    """Return a recipe with a field set, unless the study itself sets it."""
    changed = recipe.with_settings([setting])
    if changed.workers != recipe.workers or changed.seed != recipe.seed:
        raise RecipeError(f"{setting} is the same for all rows; give it as --workers, or with --set for the first seed")
    return changed


def conditions(
    task: Task, base: Recipe, workers: int, names: Sequence[str] | None = None
) -> tuple[list[Condition], list[str]]:
    """Return the conditions of a study, and one line for each reason why default conditions do not fit the task.

    Args:
        task: the task; its model may lack what a technique needs, such as an argument ``batch_norm``.
        base: the recipe of one worker.
        workers: the number of workers of all conditions except the controls.
        names: the conditions to train; one that does not fit the task is an error. By default :func:`default_rows`,
            without those that do not fit.
    """
    from rueda.train.normalisation import convert

    if names is not None and not names:
        raise RecipeError("rows", expected="a named recipe or more", got=list(names), do="see `rueda recipe list`")
    asked = list(names) if names is not None else default_rows()
    found: dict[str, Condition] = {}
    left_out: dict[str, list[str]] = {}
    for name in asked:
        try:
            one = condition(name, base, workers)
            convert(task.build(one.recipe), one.recipe)
        except (RecipeError, TaskError) as error:
            if names is not None:
                prefix = "" if str(error).startswith(f"row {name}:") else f"row {name}: "
                raise type(error)(f"{prefix}{error}") from None
            left_out.setdefault(str(error).removeprefix(f"row {name}: "), []).append(name)
            continue
        found[one.name] = one
    return list(found.values()), [f"left out: {', '.join(rows)}: {reason}" for reason, rows in left_out.items()]
