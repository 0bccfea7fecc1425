"""Batch sizes that can be measured, and counts that make sense."""

from __future__ import annotations

from collections.abc import Sequence

from rueda.errors import RecipeError


def check_batches(batches: Sequence[int], largest: int) -> None:
    """Refuse to measure no batch size, or one that the data cannot fill."""
    if not batches:
        raise RecipeError("batches", expected="one or more", got=[], do="give e.g. --batches 1,8,64")
    for batch in batches:
        if not 1 <= batch <= largest:
            raise RecipeError("batch", expected=f"from 1 to {largest}", got=batch, do="correct it")


def check_counts(**counts: int) -> None:
    """Refuse numbers of things, by name, that are less than 1."""
    for name, value in counts.items():
        if value < 1:
            raise RecipeError(name, expected="1 or more", got=value, do="correct it")
