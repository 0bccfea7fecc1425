"""The objective: loss and error of a model as a function of its parameters, on examples that lie in memory."""

from __future__ import annotations

from rueda.examine.objective.objective import Objective

__all__ = ["Objective"]
