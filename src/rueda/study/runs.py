"""Reads run folders: whether a run is finished, and the summary of all runs of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rueda.errors import RecipeError, RunError
from rueda.optim.rates import adapted
from rueda.records import Recipe, Row, Run
from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.records.recipe.differences import describe_differences
from rueda.records.study import StudyRow, mean_and_spread
from rueda.study.conditions import Condition


def last_row(folder: Path) -> Row | None:
    """Return the metrics of the last epoch of a run; None before the first epoch has ended."""
    try:
        rows = Run(folder).rows("epoch")
    except RunError:  # it has not begun, or its file is damaged: in both cases it is not finished
        return None
    return rows[-1] if rows else None


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Return whether the files of a run show that this recipe was trained to its last epoch or diverged."""
    last = last_row(folder)
    if last is None or recorded_recipe(folder) != recipe:
        return False
    # AdaScale ends where its clock does, before or after any number of epochs; for others, older files do not say it.
    return last.diverged or last.last or (last.epoch >= adapted(recipe).epochs and not recipe.adascale)


def recorded_recipe(folder: Path) -> Recipe | None:
    """Return the recipe in a run folder; None if there is none."""
    if not (folder / "recipe.toml").exists():
        return None
    try:
        return Run(folder).recipe()
    except RecipeError as error:
        raise RunError(f"{error}; remove the folder to run it again") from None


def check_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse to train a recipe in a folder that holds a run of another one."""
    refuse_another(folder, recorded_recipe(folder), recipe)


def refuse_another(folder: Path, was: Recipe | None, now: Recipe) -> None:
    """Refuse a recipe that differs from the recorded one, if there is one; the message names the fields that differ.

    >>> refuse_another(Path("runs/a"), Recipe(rate=0.1), Recipe(rate=3, clip=1.0))
    Traceback (most recent call last):
    rueda.errors.RunError: runs/a was trained with rate = 0.1, clip = none, but now the request is rate = 3, ...
    """
    if was is not None and was != now:
        raise RunError(f"{folder} {describe_differences(was, now)}; choose another --folder")


def summarise(condition: Condition, root: Path, runs: list[tuple[int, Path]], *, rehearsed: bool) -> StudyRow | None:
    """Summarise the finished runs of a condition as a row of the table; None if no run has finished yet.

    Metrics are means over the seeds that did not diverge. Time, throughput, epochs and updates are means over the same
    seeds, or over all of them if every seed diverged.

    Args:
        condition: the condition that was trained.
        root: the folder of the study.
        runs: the seed and the folder of each run.
        rehearsed: whether the workers were virtual ones in one process.
    """
    rows = [row for _, folder in runs if (row := last_row(folder)) is not None]
    if not rows:
        return None
    trained = [row for row in rows if not row.diverged]
    timed = trained or rows
    metric = timed[0].metric
    test, test_spread = _mean(trained, lambda row: row.value())
    train, train_spread = _mean(trained, lambda row: row.value("train"))
    validation, validation_spread = _mean(trained, lambda row: row.value("validation"))
    kind = "accuracy" if metric == ACCURACY else "value"
    figures: dict[str, Any] = {
        f"test_{kind}": test, f"test_{kind}_spread": test_spread, f"train_{kind}": train,
        f"train_{kind}_spread": train_spread,
    }  # fmt: skip
    return StudyRow(
        name=condition.name, summary=condition.summary, workers=condition.recipe.workers,
        global_batch=timed[0].global_batch, **figures, **_lengths(timed),
        validation=validation, validation_spread=validation_spread, others=_others(trained),
        seconds=sum(row.seconds for row in timed) / len(timed),
        images_per_second=sum(row.mean_images_per_second for row in timed) / len(timed),
        rehearsed=rehearsed, seeds=tuple(seed for seed, _ in runs), diverged=len(rows) - len(trained),
        runs=tuple(folder.relative_to(root).as_posix() for _, folder in runs),
    )  # fmt: skip


def _lengths(rows: list[Row]) -> dict[str, Any]:
    """Return epochs and updates of some seeds: their means, and their ranges where the seeds differ."""
    found: dict[str, Any] = {}
    for name, counts in (("epochs", [row.epoch for row in rows]), ("updates", [row.step for row in rows])):
        found[name] = round(sum(counts) / len(counts))
        found[f"{name}_range"] = (min(counts), max(counts)) if min(counts) < max(counts) else None
    return found


def metric_of(root: Path, rows: Iterable[StudyRow]) -> tuple[MetricInfo, str]:
    """Return the primary metric and the unit of throughput that the runs of a study's rows record."""
    for row in rows:
        for folder in row.runs:
            if (last := last_row(root / folder)) is not None:
                return last.metric, last.unit
    return ACCURACY, "images"


def _mean(rows: Iterable[Row], value: Callable[[Row], float | None]) -> tuple[float | None, float | None]:
    return mean_and_spread([found for row in rows if (found := value(row)) is not None])


def _others(rows: list[Row]) -> dict[str, dict[str, float | None]]:
    """Return the means of all further figures: other metrics, and other test sets."""
    found: dict[str, dict[str, float | None]] = {}
    for of, values in rows[0].figures.items() if rows else ():
        shown = {LOSS.name, rows[0].metric.name} if of in ("train", "validation", "test") else set()
        for name in [name for name in values if name not in shown]:
            found.setdefault(of, {})[name] = _mean(rows, lambda row, of=of, name=name: row.value(of, name))[0]  # type: ignore[misc]
    return found
