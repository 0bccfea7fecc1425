"""Checks of the batch sizes and counts that a user asks for."""

from __future__ import annotations

from collections.abc import Sequence

from rueda.errors import RecipeError


def check_batches(batches: Sequence[int], largest: int) -> None:
    """Raise RecipeError if there is no batch size, or one that is larger than the data."""
    if not batches:
        raise RecipeError("batches", expected="one or more", got=[], do="give e.g. --batches 1,8,64")
    for batch in batches:
        if not 1 <= batch <= largest:
            raise RecipeError("batch", expected=f"from 1 to {largest}", got=batch, do="correct it")


MOST_SEEDS = 10_000
"""more than any study needs, and fewer than a mistyped number"""


def check_counts(**counts: int | None) -> None:
    """Raise RecipeError if a count, given by name, is no whole number or out of its range; None is not checked.

    >>> check_counts(seeds=10**9)
    Traceback (most recent call last):
    rueda.errors.RecipeError: seeds: expected at most 10,000, got 1000000000; correct it
    """
    for name, value in counts.items():
        if value is not None and not hasattr(value, "__index__"):
            raise RecipeError(name, expected="a whole number", got=value, do="correct it")
        if value is not None and value < 1:
            raise RecipeError(name, expected="1 or more", got=value, do="correct it")
        if value is not None and name == "seeds" and value > MOST_SEEDS:
            raise RecipeError(name, expected=f"at most {MOST_SEEDS:,}", got=value, do="correct it")
