"""Training: the state, the step, the loop around it, its checkpoints, and the rehearsal of many workers."""

from __future__ import annotations

from rueda.train.loop import Result, fit

__all__ = ["Result", "fit"]
