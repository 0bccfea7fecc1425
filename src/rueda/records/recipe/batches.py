"""Batch sizes that can be measured."""

from __future__ import annotations

from collections.abc import Sequence

from rueda.errors import RecipeError, explain


def check_batches(batches: Sequence[int], largest: int) -> None:
    """Refuse to measure no batch size, or one that the data cannot fill."""
    if not batches:
        raise RecipeError(explain("batches", expected="one or more", got=[], do="give e.g. --batches 1,8,64"))
    for batch in batches:
        if not 1 <= batch <= largest:
            raise RecipeError(explain("batch", expected=f"from 1 to {largest}", got=batch, do="correct it"))
