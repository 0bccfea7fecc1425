"""Parses lists of whole numbers on the command line."""

from __future__ import annotations


def whole_numbers(option: str, text: str, example: str) -> list[int]:
    """Parse one or more whole numbers, separated by commas.

    >>> whole_numbers("--batches", "1,8,", "1,8,64")
    [1, 8]
    """
    from rueda.errors import RecipeError

    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise RecipeError(
            option, expected="whole numbers, separated by commas", got=text, do=f"write e.g. {option} {example}"
        )
    return found
