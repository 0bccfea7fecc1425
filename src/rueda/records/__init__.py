"""The files that one command writes and the next one reads (TOML and JSON), as typed records; without torch."""

from __future__ import annotations

from rueda.records.recipe.recipe import Recipe
from rueda.records.run import Row, Run

__all__ = ["Recipe", "Row", "Run"]
