"""Training: the loop, its checkpoints, and what it shows."""

from __future__ import annotations

from rueda.train.loop import fit
from rueda.train.state import Result

__all__ = ["Result", "fit"]
