"""The recipe: how to train a task.

================  ==================================================================================
``recipe.py``     the fields, and reading and writing them as TOML
``rules.py``      which values are allowed, and which fields contradict each other
``values.py``     from text or TOML to the type that a field declares
``named.py``      the named recipes: each technique of the course as changes to a task's own recipe
================  ==================================================================================
"""

from __future__ import annotations

from rueda.records.recipe.recipe import Recipe

__all__ = ["Recipe"]
