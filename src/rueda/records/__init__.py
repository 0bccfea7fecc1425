"""What flows between the stages, on disk as TOML and JSON. Nothing here needs torch."""

from __future__ import annotations

from rueda.records.recipe.recipe import Recipe
from rueda.records.run import Row, Run

__all__ = ["Recipe", "Row", "Run"]
