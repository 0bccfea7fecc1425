"""How records speak to people: the same words in a terminal and on the page."""

from __future__ import annotations

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def amount(num_bytes: float) -> str:
    """Write bytes for people.

    >>> amount(4), amount(16_777_216), amount(2.5e9)
    ('4 B', '17 MB', '2.5 GB')
    """
    for size, unit in _UNITS:
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def with_workers(name: str, workers: int | None, rehearsed: bool | None) -> str:
    """Name a trained model with its workers, and say where they were virtual.

    >>> with_workers("lamb", 8, True), with_workers("naive, 64 workers", 64, True), with_workers("one-worker", 1, False)
    ('lamb, 8 workers, rehearsed', 'naive, 64 workers, rehearsed', 'one-worker')
    """
    told = "" if workers is None or workers == 1 else f", {workers} workers"
    return name + told * (told not in name) + ", rehearsed" * (rehearsed is True)
