"""What the studies of one process share: a task whose data are read once, and batch sizes that can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rueda.errors import RecipeError, explain
from rueda.tasks import Task, load_task


def loaded_once(task: Task | str) -> Task:
    """Give the task with its data in memory."""
    found = load_task(task) if isinstance(task, str) else task
    return replace(found, train=found.load("train"), test=found.load("test"))


def check_batches(batches: Sequence[int], largest: int) -> None:
    """Refuse to measure no batch size, or one that the data cannot fill."""
    if not batches:
        raise RecipeError(explain("batches", expected="one or more", got=[], do="give e.g. --batches 1,8,64"))
    for batch in batches:
        if not 1 <= batch <= largest:
            raise RecipeError(explain("batch", expected=f"from 1 to {largest}", got=batch, do="correct it"))
