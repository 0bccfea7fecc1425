"""The recipe says how to train a task.

================  ==================================================================================
``recipe.py``     the fields, and reading and writing them as TOML
``rules.py``      which values are allowed, and which fields contradict each other
``values.py``     conversion of text and TOML values to the type that a field declares
``named.py``      the named recipes: each technique as changes to a task's own recipe
``default_rates`` the learning rate of an optimizer that is chosen without one
================  ==================================================================================
"""

from __future__ import annotations

from rueda.records.recipe.recipe import Recipe

__all__ = ["Recipe"]
