"""The reader of run folders: each run becomes a line of the figures, and the seeds of a recipe a row of the table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rueda.errors import RecipeError, RunError
from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.records.recipe.differences import describe_changes
from rueda.records.recipe.recipe import Recipe
from rueda.records.run import EPOCH, STEP, NoiseRow, Row, Run
from rueda.records.study import mean_and_spread
from rueda.report.figures.parts import finite
from rueda.report.model import Columns, Entry, Line, short
from rueda.report.rates import scheduled_rates, stairs
from rueda.report.words import describe_recipe
from rueda.terminal.numbers import number

MEASURES = (
    *("test_accuracy", "test_loss", "train_accuracy", "train_loss"),
    *("images_per_second", "model_flops_utilisation"),
)
MOST_INCIDENTS = 20
"""the most notes about single workers of a run"""
MOST_POINTS = 300
"""the most points of a curve: more than a screen can resolve, and few enough for a small page"""


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run folder."""
    return (folder / "metrics.jsonl").is_file() or (folder / "environment.json").is_file()


def read_run(run: Run, name: str) -> tuple[Line, list[str]]:
    """Read a run; return it with notes about what could not be read.

    Raises:
        RunError: the folder is no run folder, a file is damaged, or there are no measurements yet.
    """
    rows, noise = run.all_rows()
    if not rows and not noise:
        file = run.metrics_file.name
        raise RunError(f"{run.folder}: expected rows in {file}, got none; train at least one epoch before a report")
    about = run.environment()
    notes = []
    line = Line(name=name, task=str(about.get("task") or "task"), environment=about)
    try:
        line.recipe = run.recipe()
    except RecipeError:
        notes.append(f"{name}: recipe.toml cannot be read")
    line.rehearsed = about.get("rehearsed") is True or any(row.rehearsed for row in rows)
    line.diverged = any(row.diverged for row in rows)
    by_epoch = [row for row in rows if row.kind == EPOCH]
    by_step = [row for row in rows if row.kind == STEP]
    an_epoch = by_epoch[-1].examples / by_epoch[-1].epoch if by_epoch and by_epoch[-1].epoch > 0 else None
    measured = [row for row in noise if row.noise.group is None]
    line.noise = _noise(_thin(measured)) if measured else {}
    line.progress = _columns(by_epoch or rows, an_epoch, MEASURES) | _metrics(by_epoch or rows)
    if rows:
        line.metrics, line.unit = rows[-1].metrics or (rows[-1].metric,), rows[-1].unit
    notes += _history(run, name) + _incidents(run, name)
    is_fine = len(by_step) > len(by_epoch)
    noted = _thin(by_step if is_fine else by_epoch or rows)
    line.batch = _curve(noted, an_epoch, "global_batch")
    line.rate = {} if line.recipe is None else scheduled_rates(line.recipe, by_epoch)
    line.rate_source = "by the recipe's schedule"
    if not line.rate:
        line.rate = _curve(noted, an_epoch, "rate")
        line.rate_source = f"as recorded {'during' if is_fine else 'at the end of'} each epoch"
    return line, notes


def group_seeds(lines: Sequence[Line]) -> list[list[Line]]:
    """Group the runs that differ in their seed alone; the second run of the same seed starts a group of its own."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    seen: Counter[tuple[str, bool]] = Counter()
    for index, line in enumerate(lines):
        key: tuple[Any, ...] = (index,)
        if line.recipe is not None:
            own = (line.recipe.to_toml(), line.rehearsed)
            key = (line.recipe.change(seed=0).to_toml(), line.rehearsed, seen[own])
            seen[own] += 1
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def to_entry(lines: Sequence[Line]) -> Entry:
    """Make a row of the table from the runs of one recipe: mean and standard deviation of their final values."""
    first, ended = lines[0], [line for line in lines if not line.diverged]

    def mean(name: str, of: Sequence[Line] = ended or lines) -> tuple[float | None, float | None]:
        lasts = [next((v for v in reversed(line.progress.get(name, [])) if v is not None), None) for line in of]
        return mean_and_spread([value for value in lasts if value is not None])

    metric = primary(lines).name
    test, train, validation = (mean(f"{of}_{metric}", ended) for of in ("test", "train", "validation"))
    batch = (first.batch.get("global_batch") or [None])[-1]
    return Entry(
        name=_shared_name([line.name for line in lines]),
        summary="" if first.recipe is None else "; ".join(describe_recipe(first.recipe)),
        workers=None if first.recipe is None else first.recipe.workers,
        global_batch=None if batch is None else round(batch),
        epochs=short(mean("epochs")[0]),
        updates=short(mean("updates")[0]),
        test=test[0],
        test_spread=test[1],
        train=train[0],
        train_spread=train[1],
        validation=validation[0],
        others=_others(ended, mean),
        seconds=mean("seconds")[0],
        images_per_second=typical(lines, "images_per_second"),
        model_flops_utilisation=typical(lines, "model_flops_utilisation"),
        rehearsed=first.rehearsed,
        diverged=len(ended) < len(lines),
        num_diverged=len(lines) - len(ended),
        num_seeds=len(lines),
        verdict="diverged" if len(ended) < len(lines) else None,
    )


def primary(lines: Sequence[Line]) -> MetricInfo:
    """Return the metric by which runs are compared: the primary one of the first run that states any."""
    return next((line.metrics[0] for line in lines if line.metrics), ACCURACY)


def _metrics(rows: Sequence[Row]) -> Columns:
    """Return the columns ``SET_METRIC`` of all metrics on all sets that the rows record by name."""
    names = dict.fromkeys((of, name) for row in rows for of, values in row.figures.items() for name in values)
    return _known({f"{of}_{name}": [row.value(of, name) for row in rows] for of, name in names})


def _others(
    lines: Sequence[Line], mean: Callable[[str, Sequence[Line]], tuple[float | None, float | None]]
) -> dict[str, dict[str, float | None]]:
    """Return the last values of further metrics, and of further test sets."""
    metric, found = primary(lines), dict[str, dict[str, float | None]]()
    names = {one.name for line in lines for one in line.metrics} | {LOSS.name}
    for column in dict.fromkeys(name for line in lines for name in line.progress):
        of, _, name = column.rpartition("_")
        shown = {metric.name, LOSS.name} if of in ("train", "validation", "test") else set()
        if of and name in names and name not in shown:
            found.setdefault(of, {})[name] = mean(column, lines)[0]
    return found


def _history(run: Run, name: str) -> list[str]:
    """Return a note for each time that a run was resumed with another recipe or another task file."""
    try:
        stages = run.history()
        recipes = [Recipe.from_toml(stage.recipe) for stage in stages] if len(stages) > 1 else []
    except (RunError, RecipeError):
        return []
    notes = []
    for at in range(1, len(recipes)):
        told = [describe_changes(recipes[at - 1], recipes[at])] if recipes[at] != recipes[at - 1] else []
        told += ["another task file"] if stages[at].task_file != stages[at - 1].task_file else []
        if told:
            notes.append(f"{name}: resumed at update {stages[at].from_step:,} with {'; '.join(told)}")
    return notes


def _incidents(run: Run, name: str) -> list[str]:
    """Return a note for each silent error and each straggler; of many, the first and the last ones."""
    found = [f"{name}: {one.text}" for one in run.incidents()]
    left_out = len(found) - MOST_INCIDENTS
    if left_out <= 0:
        return found
    half = MOST_INCIDENTS // 2
    return [*found[:half], f"{name}: {left_out:,} more incidents are in metrics.jsonl", *found[-half:]]


def typical(lines: Iterable[Line], name: str) -> float | None:
    """Return the median of a value over the epochs of each run, averaged over the runs; None if it is unknown."""
    values = [sorted(finite(line.progress.get(name, []))) for line in lines]
    return mean_and_spread([one[len(one) // 2] for one in values if one])[0]


def _shared_name(names: Sequence[str]) -> str:
    """Return the common part of the names of one recipe's runs.

    >>> _shared_name(["lamb-seed0", "lamb-seed1"]), _shared_name(["monday", "friday"]), _shared_name(["run-7"])
    ('lamb', 'monday and 1 more', 'run-7')
    """
    stem = re.sub(r"[-_. ]*(seed)?[-_. ]*\d+$", "", names[0])
    if len(names) == 1 or not stem or not all(name.startswith(stem) for name in names):
        return names[0] + f" and {len(names) - 1} more" * (len(names) > 1)
    return stem


def _curve(rows: Sequence[Row], an_epoch: float | None, name: str) -> Columns:
    columns = _columns(rows, an_epoch, (name,))
    return stairs(columns, name) if name in columns else {}


def _columns(rows: Sequence[Row], an_epoch: float | None, names: tuple[str, ...]) -> Columns:
    """Convert rows to columns. The epoch of a step is a fraction: examples seen / examples per epoch."""
    epochs = [row.examples / an_epoch if row.kind == STEP and row.examples and an_epoch else row.epoch for row in rows]
    columns = _along(rows, epochs, [row.step for row in rows])
    return columns | _known({name: [getattr(row, name) for row in rows] for name in names})


def _noise(rows: Sequence[NoiseRow]) -> Columns:
    """Convert measurements of the noise scale to columns; an infinite bound becomes None."""
    columns = _along(rows, [row.epoch for row in rows], [row.noise.step for row in rows])
    names = ("value", "low", "high")
    measured: dict[str, list[float]] = {name: [getattr(row.noise, name) for row in rows] for name in names}
    return columns | _known({**measured, "global_batch": [row.global_batch for row in rows]})


def _along(rows: Sequence[Row | NoiseRow], epochs: Sequence[float], updates: Sequence[float]) -> Columns:
    columns = {"epochs": epochs, "updates": updates, "seconds": [row.seconds for row in rows]}
    return {name: [short(number(value)) for value in values] for name, values in columns.items()}


def _known(columns: Mapping[str, Sequence[float | None]]) -> Columns:
    """Return the columns in which something was measured."""
    shown = {name: [short(number(value)) for value in values] for name, values in columns.items()}
    return {name: values for name, values in shown.items() if any(value is not None for value in values)}


def _thin(rows: Sequence[Any]) -> Sequence[Any]:
    stride = -(-len(rows) // MOST_POINTS)
    return rows if stride <= 1 else [*rows[: len(rows) - 1 : stride], rows[-1]]
