"""What run folders say: whether a run is finished, and what the runs of one row come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rueda.errors import RecipeError, RunError
from rueda.records import Recipe, Row, Run
from rueda.records.study import StudyRow, mean_and_spread
from rueda.study.conditions import Condition
from rueda.train.regime import adapted


def last_row(folder: Path) -> Row | None:
    """Give the last epoch's row of a run, or None before the first."""
    try:
        rows = Run(folder).rows("epoch")
    except RunError:  # not begun, or its file is damaged: then it is not finished either
        return None
    return rows[-1] if rows else None


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Say, from its own files, whether a run of this recipe reached its last epoch or diverged."""
    last = last_row(folder)
    if last is None or recorded_recipe(folder) != recipe:
        return False
    return last.diverged or last.epoch >= adapted(recipe).epochs


def recorded_recipe(folder: Path) -> Recipe | None:
    """Read the recipe of a run folder; None if there is none."""
    if not (folder / "recipe.toml").exists():
        return None
    try:
        return Run(folder).recipe()
    except RecipeError as error:
        raise RunError(f"{error}; remove the folder to run it again") from None


def check_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse to mix two recipes in one folder."""
    refuse_another(folder, recorded_recipe(folder), recipe)


def refuse_another(folder: Path, was: Recipe | None, now: Recipe) -> None:
    """Refuse a recipe that is not the one that a folder has, if it has one; name the fields that differ.

    >>> refuse_another(Path("runs/a"), Recipe(rate=0.1), Recipe(rate=3, clip=1.0))
    Traceback (most recent call last):
    rueda.errors.RunError: runs/a was trained with rate = 0.1, clip = none, now asked: rate = 3, clip = 1.0; choose ...
    """
    if was is not None and was != now:
        before, asked = _shown(was.changes_from(now)), _shown(now.changes_from(was))
        raise RunError(f"{folder} was trained with {before}, now asked: {asked}; choose another --folder")


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_show(value)}" for name, value in values.items())


def _show(value: Any) -> str:
    return "none" if value is None else repr(list(value) if isinstance(value, tuple) else value)


def summarise(condition: Condition, root: Path, runs: list[tuple[int, Path]], *, rehearsed: bool) -> StudyRow | None:
    """Come from the finished runs of a row, by seed, to its line; None if there is none yet.

    Accuracies are means over the seeds that did not diverge. Time and images/s are means over the same, or over all
    if every seed diverged.
    """
    rows = [row for _, folder in runs if (row := last_row(folder)) is not None]
    if not rows:
        return None
    whole = [row for row in rows if not row.diverged]
    timed = whole or rows
    test, test_spread = mean_and_spread([row.test_accuracy for row in whole if row.test_accuracy is not None])
    train, train_spread = mean_and_spread([row.train_accuracy for row in whole if row.train_accuracy is not None])
    return StudyRow(
        name=condition.name, summary=condition.summary, workers=condition.recipe.workers,
        global_batch=timed[0].global_batch, epochs=timed[0].epoch, updates=timed[0].step,
        test_accuracy=test, test_accuracy_spread=test_spread,
        train_accuracy=train, train_accuracy_spread=train_spread,
        seconds=sum(row.seconds for row in timed) / len(timed),
        images_per_second=sum(row.mean_images_per_second for row in timed) / len(timed),
        rehearsed=rehearsed, seeds=tuple(seed for seed, _ in runs), diverged=len(rows) - len(whole),
        runs=tuple(folder.relative_to(root).as_posix() for _, folder in runs),
    )  # fmt: skip
