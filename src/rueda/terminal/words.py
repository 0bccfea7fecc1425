"""How trained models are named for people: the same words on a terminal and on the page."""

from __future__ import annotations


def with_workers(name: str, workers: int | None, rehearsed: bool | None) -> str:
    """Name a trained model with its workers, and say where they were virtual.

    >>> with_workers("lamb", 8, True), with_workers("naive, 64 workers", 64, True), with_workers("one-worker", 1, False)
    ('lamb, 8 workers, rehearsed', 'naive, 64 workers, rehearsed', 'one-worker')
    """
    told = "" if workers is None or workers == 1 else f", {workers} workers"
    return name + told * (told not in name) + ", rehearsed" * (rehearsed is True)
