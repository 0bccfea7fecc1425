"""What to train: the task, the built-in ones, their models and data sets. The package's names load torch when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.tasks.loading import load_task
    from rueda.tasks.task import Task

__all__ = ["Task", "load_task"]

__getattr__ = lazily(__name__, {"Task": "task", "load_task": "loading"})
