"""What a page shows, read from files and checked: numbers are numbers or None, texts are any text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, list[float | None]]
"""lists of one length, by name"""


@dataclass(kw_only=True)
class Line:
    """One run: a line in the figures."""

    name: str
    task: str
    entry: int = 0
    """index of its row in the table"""
    workers: int | None = None
    seed: int | None = None
    essentials: tuple[str, ...] = ()
    """the recipe in a few words each"""
    rehearsed: bool = False
    diverged: bool = False
    progress: Columns = field(default_factory=dict)
    """epochs, updates, seconds and what was measured, a value an epoch"""
    schedule: Columns = field(default_factory=dict)
    """epochs, updates, seconds, rate and batch, more often"""
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Entry:
    """A row of the table: a technique with its seeds, or a run."""

    name: str
    summary: str = ""
    workers: int | None = None
    global_batch: int | None = None
    epochs: float | None = None
    updates: float | None = None
    test_accuracy: float | None = None
    test_accuracy_spread: float | None = None
    train_accuracy: float | None = None
    train_accuracy_spread: float | None = None
    seconds: float | None = None
    images_per_second: float | None = None
    rehearsed: bool = False
    diverged: bool = False
    num_diverged: int = 0
    """seeds that diverged: a technique that sometimes diverges keeps nothing"""
    num_seeds: int = 1
    against: float | None = None
    """points of test accuracy above (or, negative, below) one worker"""
    verdict: str | None = None
    """kept, lost or diverged"""
    role: str = "other"
    """base (one worker), naive, best or other: who stands out in the figures"""


@dataclass(kw_only=True)
class Section:
    """A study, or the runs of a task: a heading, a sentence, a table and figures."""

    title: str
    task: str
    workers: int | None = None
    entries: list[Entry] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    is_study: bool = False
    throughput: dict[str, Any] | None = None
    steps: dict[str, Any] | None = None
    gd: dict[str, Any] | None = None
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """what was left out, and why"""

    def with_role(self, role: str) -> Entry | None:
        """Give the row that plays a role."""
        return next((entry for entry in self.entries if entry.role == role), None)


def number(value: Any) -> float | None:
    """Take a finite number; anything else counts as not measured.

    >>> number(3), number("3"), number(float("inf")), number(True)
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond any float
        return None


def whole(value: Any) -> int | None:
    """Take a whole number, or None.

    >>> whole(8), whole(8.0), whole("8")
    (8, 8, None)
    """
    found = number(value)
    return None if found is None else round(found)


def numbers(values: Any) -> list[float | None]:
    """Take a list of numbers; what is none counts as not measured, and no list as an empty one."""
    return [number(value) for value in values] if isinstance(values, list) else []


def short(value: float | None) -> float | None:
    """Keep six digits: a page shows no more, and is smaller.

    >>> short(1 / 3), short(4), short(None)
    (0.333333, 4, None)
    """
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")
