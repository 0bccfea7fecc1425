"""What the studies of one process share: a task whose data are read once, however many trainings use them."""

from __future__ import annotations

from dataclasses import replace

from rueda.tasks import Task, load_task


def loaded_once(task: Task | str) -> Task:
    """Give the task with its data in memory."""
    found = load_task(task) if isinstance(task, str) else task
    return replace(found, train=found.load("train"), test=found.load("test"))
