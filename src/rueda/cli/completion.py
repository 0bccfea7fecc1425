"""What a shell completes beyond commands and options: tasks, named recipes, recipe fields, rows, clusters, run folders.

``rueda --install-completion`` installs it for bash, zsh or fish. Each function receives the incomplete word and returns
candidates, some with a description; typer keeps those that begin with the word, and where none does, the shell
completes file names. None of them loads torch, so that a completion takes a fraction of a second.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

_WIDEST = 72
"""characters of a description: typer breaks longer ones into lines, and fish takes the second line for a candidate"""


def tasks(incomplete: str) -> list[str]:
    """Return the built-in tasks and the Python files in the folder that the word names."""
    from rueda.tasks.naming import BUILTIN_TASKS

    return [*BUILTIN_TASKS, *map(str, Path(os.path.dirname(incomplete)).glob("*.py"))]


def recipes() -> list[tuple[str, str]]:
    """Return the named recipes with their summaries, without the references."""
    from rueda.records.recipe.named import NAMED

    return [(name, _short(named.summary.partition(" (")[0])) for name, named in NAMED.items()]


def trackers() -> list[str]:
    """Return the names that ``--track`` takes."""
    from rueda.train.trackers.opening import TRACKERS

    return list(TRACKERS)


def rows(incomplete: str) -> list[tuple[str, str]]:
    """Return the named recipes after what ``--rows`` names already.

    >>> [row for row, _ in rows("naive,batch-norm+l") if row.startswith("naive,batch-norm+l")][:2]
    ['naive,batch-norm+linear-scaling', 'naive,batch-norm+linear-warmup']
    """
    start = max(incomplete.rfind(","), incomplete.rfind("+")) + 1
    return [(incomplete[:start] + name, summary) for name, summary in recipes()]


def settings() -> list[tuple[str, str]]:
    """Return the fields of a recipe for ``--set``, with the beginning of their meanings.

    >>> [field for field, _ in settings() if field.startswith("opt")]
    ['optimizer=']
    """
    from rueda.records.recipe.recipe import describe_fields

    fields = [(name, meaning.partition(":")[0]) for name, _, meaning in describe_fields() if name != "model"]
    return [(f"{name}=", _short(meaning)) for name, meaning in fields]


def _short(text: str) -> str:
    """Leave out the last words of a long description.

    >>> _short("loss " * 20)
    'loss loss loss loss loss loss loss loss loss loss loss loss loss ...'
    """
    return textwrap.shorten(text, _WIDEST, placeholder=" ...")


def clusters() -> list[str]:
    """Return the names of the shipped clusters."""
    from rueda.plan import cluster_names

    return cluster_names()


def results(incomplete: str) -> list[str]:
    """Return the folders with runs, studies or forecasts in ``runs`` and in the folder that the word names."""
    from rueda.records.descent import GradientDescent
    from rueda.records.forecast import Forecast
    from rueda.records.steps_to_target import StepsToTarget
    from rueda.records.study import Study
    from rueda.records.throughput import Throughput

    records = (Study, StepsToTarget, Throughput, GradientDescent, Forecast)
    files = ("recipe.toml", *(record.FILE for record in records))
    found = {folder for base in ("runs", os.path.dirname(incomplete)) for folder in Path(base).glob("*/")}
    return sorted(str(folder) for folder in found if any((folder / name).exists() for name in files))


def scripts(incomplete: str) -> list[str]:
    """Return the Python files in the folder that the word names."""
    return [*map(str, Path(os.path.dirname(incomplete)).glob("*.py"))]


def styles() -> list[tuple[str, str]]:
    """Return what ``rueda convert --to`` takes."""
    return [("ddp", "torch alone"), ("rueda", "Rueda's few lines"), ("horovod", "Horovod's steps")]
