"""The form of parallel training that a recipe names: ``data``, ``pipeline``, or ``data 2 x pipeline 2``."""

from __future__ import annotations

import re

_BOTH = re.compile(r"data (\d+) x pipeline (\d+)")


def is_known_form(parallel: str) -> bool:
    """Return whether a recipe may name this form.

    >>> [is_known_form(form) for form in ("data", "pipeline", "data 2 x pipeline 2", "data 0 x pipeline 2", "both")]
    [True, True, True, False, False]
    """
    if parallel in ("data", "pipeline"):
        return True
    found = _BOTH.fullmatch(parallel)
    return found is not None and int(found[1]) > 0 and int(found[2]) > 1


def pipelines_of(parallel: str, workers: int) -> tuple[int, int] | None:
    """Return the number of pipelines side by side and the workers of each; None for data parallelism alone.

    >>> pipelines_of("pipeline", 4), pipelines_of("data 2 x pipeline 2", 4), pipelines_of("data", 4)
    ((1, 4), (2, 2), None)
    """
    if parallel == "data":
        return None
    found = _BOTH.fullmatch(parallel)
    return (1, workers) if found is None else (int(found[1]), int(found[2]))
