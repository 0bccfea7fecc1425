"""Training: the state, the step, the loop around it, its checkpoints, and the rehearsal of many workers.

Importing the package loads no torch; its names do, when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.train.loop import Result, fit

__all__ = ["Result", "fit"]

__getattr__ = lazily(__name__, {"Result": "loop", "fit": "loop"})
