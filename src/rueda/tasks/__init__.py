"""Tasks: what is trained. The built-in tasks with their models and data sets; torch is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.tasks.keras_task import KerasTask
    from rueda.tasks.loading import load_task
    from rueda.tasks.phase import Phase
    from rueda.tasks.step import Losses
    from rueda.tasks.task import Task

__all__ = ["KerasTask", "Losses", "Phase", "Task", "load_task"]

__getattr__ = lazily(
    __name__,
    {"KerasTask": "keras_task", "Losses": "step", "Phase": "phase", "Task": "task", "load_task": "loading"},
)
