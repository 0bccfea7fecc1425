"""Reading a run folder as a line of the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rueda.errors import RecipeError, RunError
from rueda.records.recipe.recipe import Recipe
from rueda.records.run import EPOCH, STEP, NoiseRow, Row, Run
from rueda.report.model import Columns, Entry, Line, short
from rueda.terminal.numbers import number, things

MEASURES = ("test_accuracy", "test_loss", "train_accuracy", "train_loss", "images_per_second")
MOST_POINTS = 300
"""of a schedule's line: more than a screen can show, few enough for a small page"""


def is_run(folder: Path) -> bool:
    """Say whether a folder was written by a training."""
    return (folder / "metrics.jsonl").is_file() or (folder / "environment.json").is_file()


def read_run(run: Run, name: str) -> tuple[Line, list[str]]:
    """Read a run, and what there is to note about it.

    Raises:
        RunError: it is no run folder, it is damaged, or nothing was measured yet.
    """
    rows, noise = run.all_rows()
    if not rows and not noise:
        file = run.metrics_file.name
        raise RunError(f"{run.folder}: expected rows in {file}, got none; train at least one epoch before a report")
    about = run.environment()
    notes = []
    line = Line(name=name, task=str(about.get("task") or "task"), environment=about)
    try:
        recipe = run.recipe()
        line.workers, line.seed = recipe.workers, recipe.seed
        line.essentials = tuple(essentials(recipe))
    except RecipeError:
        notes.append(f"{name}: recipe.toml cannot be read")
    line.rehearsed = about.get("rehearsed") is True or any(row.rehearsed for row in rows)
    line.diverged = any(row.diverged for row in rows)
    by_epoch = [row for row in rows if row.kind == EPOCH]
    by_step = [row for row in rows if row.kind == STEP]
    an_epoch = by_epoch[-1].examples / by_epoch[-1].epoch if by_epoch and by_epoch[-1].epoch > 0 else None
    measured = [row for row in noise if row.noise.group is None]
    line.noise = _noise(_thin(measured)) if measured else {}
    line.progress = _columns(by_epoch or rows, an_epoch, MEASURES)
    chosen = by_step if len(by_step) > len(by_epoch) else by_epoch or rows
    line.schedule = _columns(_thin(chosen), an_epoch, ("rate", "global_batch"))
    return line, notes


def to_entry(line: Line) -> Entry:
    """Make a row of the table from one run: how it ended."""
    last = {name: next((v for v in reversed(values) if v is not None), None) for name, values in line.progress.items()}
    speeds = sorted(value for value in line.progress.get("images_per_second", []) if value is not None)
    batch = (line.schedule.get("global_batch") or [None])[-1]
    return Entry(
        name=line.name,
        summary="; ".join(line.essentials),
        workers=line.workers,
        global_batch=None if batch is None else round(batch),
        epochs=last["epochs"],
        updates=last["updates"],
        test_accuracy=None if line.diverged else last.get("test_accuracy"),
        train_accuracy=None if line.diverged else last.get("train_accuracy"),
        seconds=last["seconds"],
        images_per_second=speeds[len(speeds) // 2] if speeds else None,
        rehearsed=line.rehearsed,
        diverged=line.diverged,
        verdict="diverged" if line.diverged else None,
    )


def essentials(recipe: Recipe) -> list[str]:
    """Tell a recipe in a few words each; what is off is not told.

    >>> essentials(Recipe(workers=8, batch=128, scaling="linear", warmup_epochs=3, schedule="cosine", epochs=12))
    ['8 × 128 = 1,024 examples an update', 'sgd, rate 0.05, linear scaling', 'warm-up 3 epochs', 'cosine schedule']
    """
    local = f"{recipe.workers} × {recipe.batch:,}" + (f" × {recipe.accumulate}" if recipe.accumulate > 1 else "")
    scaling = "" if recipe.scaling == "none" else f", {recipe.scaling} scaling"
    words: list[tuple[bool, str]] = [
        (True, f"{local} = {recipe.global_batch:,} examples an update"),
        (True, f"{recipe.optimizer}, rate {recipe.rate:g}{scaling}"),
        (recipe.adascale, "AdaScale"),
        (recipe.warmup_epochs > 0, f"warm-up {things(recipe.warmup_epochs, 'epoch')}"),
        (recipe.schedule != "constant", f"{recipe.schedule} schedule"),
        (recipe.growth_factor is not None, f"batch grows × {recipe.growth_factor or 1:.3g}"),
        (recipe.growth_from_noise, "batch follows the noise scale"),
        (recipe.weight_decay > 0, f"weight decay {recipe.weight_decay:g}"),
        (recipe.ghost_batch is not None, f"ghost batches of {recipe.ghost_batch}"),
        (recipe.sync_batch_norm, "batch norm over all workers"),
        (recipe.gradient_noise > 0, f"gradient noise {recipe.gradient_noise:g}"),
        (recipe.additive_noise > 0, f"additive noise {recipe.additive_noise:g}"),
        (recipe.keep_updates, "as many updates as one worker"),
        (bool(recipe.model), ", ".join(f"{name} = {value}" for name, value in recipe.model.items())),
        (recipe.precision != "float32", recipe.precision),
    ]
    return [text for told, text in words if told]


def _columns(rows: Sequence[Row], an_epoch: float | None, names: tuple[str, ...]) -> Columns:
    """Turn rows into columns. The epochs of steps are fractions: examples seen, over those of an epoch."""
    epochs = [row.examples / an_epoch if row.kind == STEP and row.examples and an_epoch else row.epoch for row in rows]
    columns = _along(rows, epochs, [row.step for row in rows])
    return columns | _known({name: [getattr(row, name) for row in rows] for name in names})


def _noise(rows: Sequence[NoiseRow]) -> Columns:
    """Turn measurements of the noise scale into columns; an end that is open is None."""
    columns = _along(rows, [row.epoch for row in rows], [row.noise.step for row in rows])
    names = ("value", "low", "high")
    measured: dict[str, list[float]] = {name: [getattr(row.noise, name) for row in rows] for name in names}
    return columns | _known({**measured, "global_batch": [row.global_batch for row in rows]})


def _along(rows: Sequence[Row | NoiseRow], epochs: Sequence[float], updates: Sequence[float]) -> Columns:
    columns = {"epochs": epochs, "updates": updates, "seconds": [row.seconds for row in rows]}
    return {name: [short(number(value)) for value in values] for name, values in columns.items()}


def _known(columns: Mapping[str, Sequence[float | None]]) -> Columns:
    """Leave out the columns in which nothing was measured."""
    shown = {name: [short(number(value)) for value in values] for name, values in columns.items()}
    return {name: values for name, values in shown.items() if any(value is not None for value in values)}


def _thin(rows: Sequence[Any]) -> Sequence[Any]:
    stride = -(-len(rows) // MOST_POINTS)
    return rows if stride <= 1 else [*rows[: len(rows) - 1 : stride], rows[-1]]
