"""What a tracker does, and which figures it receives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Protocol

from rueda.records import Row, Run

_NO_FIGURES = ("kind", "step", "figures")


class Tracker(Protocol):
    """A place to which the figures of a training are written, by rank 0."""

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures after a number of updates."""

    def close(self) -> None:
        """Finish writing."""


def numbers(row: Row) -> dict[str, float]:
    """Return the numbers of a row by their names; what was not measured or is not finite is left out.

    Characters that not every tracker takes in a name, as in ``recall @10``, become underscores.

    >>> row = Row(kind="epoch", epoch=1, step=9, examples=90, seconds=2.0, train_loss=0.5, train_accuracy=None,
    ...           images_per_second=45.0, rate=0.1, global_batch=10)
    >>> numbers(row)["train_loss"], "train_accuracy" in numbers(row), "diverged" in numbers(row)
    (0.5, False, False)
    """
    values: dict[str, Any] = {name: value for name, value in asdict(row).items() if name not in _NO_FIGURES}
    for of, found in row.figures.items():
        values |= {re.sub(r"[^\w.-]+", "_", f"{of}_{name}"): value for name, value in found.items()}
    kept = {name: value for name, value in values.items() if _is_number(value)}
    return {name: value for name, value in kept.items() if math.isfinite(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def settings(run: Run) -> dict[str, Any]:
    """Return what a tracker shows beside the curves: the fields of the recipe."""
    recipe = run.recipe()
    names = [field.name for field in fields(recipe) if field.name not in ("reasons", "model")]
    model = {f"model.{name}": value for name, value in recipe.model.items()}
    return {**{name: getattr(recipe, name) for name in names}, **model}


def task_of(run: Run) -> str:
    """Return the name of the task, under which a tracker groups the runs."""
    return str(run.environment()["task"])


def remembered(run: Run, tracker: str) -> str | None:
    """Return the name under which a tracker knows the run, if an earlier process has begun it there."""
    file = _identity_file(run, tracker)
    return file.read_text(encoding="utf-8").strip() if file.exists() else None


def remember(run: Run, tracker: str, identity: str) -> None:
    """Keep the name under which a tracker knows the run, so that a resumed run continues it."""
    _identity_file(run, tracker).write_text(identity + "\n", encoding="utf-8")


def _identity_file(run: Run, tracker: str) -> Path:
    return run.folder / f"{tracker}-run"
