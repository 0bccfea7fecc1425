"""In which fields two recipes differ, as a text for messages."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rueda.records.recipe.recipe import Recipe


def describe_differences(was: Recipe, now: Recipe, names: Collection[str] | None = None) -> str:
    """Return the fields in which two recipes differ, or only those of ``names``, with both values.

    >>> describe_differences(Recipe(rate=0.1), Recipe(rate=3, clip=1.0))
    'was trained with rate = 0.1, clip = none, but now the request is rate = 3, clip = 1.0'
    """
    before, asked = (
        {name: value for name, value in one.changes_from(other).items() if names is None or name in names}
        for one, other in ((was, now), (now, was))
    )
    return f"was trained with {_assignments(before)}, but now the request is {_assignments(asked)}"


def describe_changes(was: Recipe, now: Recipe) -> str:
    """Return the fields in which two recipes differ, each with its former and its new value.

    >>> describe_changes(Recipe(rate=0.1), Recipe(rate=0.05, clip=1.0))
    'rate = 0.1 -> 0.05, clip = none -> 1.0'
    """
    before = was.changes_from(now)
    return ", ".join(
        f"{_assignments({name: before[name]})} -> {_assignments({name: value}).removeprefix(f'{name} = ')}"
        for name, value in now.changes_from(was).items()
    )


def _assignments(values: dict[str, Any]) -> str:
    texts = {name: repr(list(value) if isinstance(value, tuple) else value) for name, value in values.items()}
    return ", ".join(f"{name} = {'none' if text == 'None' else text}" for name, text in texts.items())
