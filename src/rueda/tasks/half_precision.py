"""Protect processes that run a task's own code, which may compute in half precision whatever the recipe says.

A step, a loss or a model may use ``torch.autocast`` or convert tensors to bf16 by itself, and a Keras model may have
the policy ``mixed_bfloat16``. So where the CPU advertises AMX, it is tried before such code runs
(:mod:`rueda.world.instruction_sets`), also for a recipe in float32. This module does not load torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rueda.tasks.naming import BUILTIN_TASKS, split_file
from rueda.world import instruction_sets
from rueda.world.running import running_identity

if TYPE_CHECKING:
    from rueda.tasks.task import Task

_HALF = ("bf16", "fp16")


def protect_before_loading(name: str) -> None:
    """Protect this process, and those that it starts, if the task of this name is a file; rank 0 reports a limit.

    Nothing is done for a built-in task, nor on a machine with a GPU, as far as one is known without torch.
    """
    if split_file(name)[0] not in BUILTIN_TASKS and not instruction_sets.has_gpu(os.environ):
        instruction_sets.protect(speak=running_identity().rank == 0)


def protect_for(task: Task, precision: str, *, speak: bool) -> None:
    """Protect this process before it computes a task on the CPU.

    Args:
        task: a task from a file, or with a step, may compute in half precision by itself.
        precision: the recipe's.
        speak: print a line if a limit is set.
    """
    own = task.file is not None or task.step is not None
    instruction_sets.protect(None if own and precision not in _HALF else precision, speak=speak)
