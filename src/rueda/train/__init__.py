"""Training: the loop, its checkpoints, and what it shows."""

from __future__ import annotations

from rueda.train.loop import Result, fit

__all__ = ["Result", "fit"]
