"""Training a task: the loop, its checkpoints, and the rehearsal of many workers in one process.

Importing the package does not import torch; using one of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.train.loop import Result, fit
    from rueda.train.own_loop import Checkpoint

__all__ = ["Checkpoint", "Result", "fit"]

__getattr__ = lazily(__name__, {"Checkpoint": "own_loop", "Result": "loop", "fit": "loop"})
