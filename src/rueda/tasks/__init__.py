"""What to train: the task, the built-in ones, their models and data sets."""

from __future__ import annotations

from rueda.tasks.loading import load_task
from rueda.tasks.task import Task

__all__ = ["Task", "load_task"]
