"""What a page shows, read from files and checked: numbers are numbers or None, texts are any text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rueda.records.descent import GradientDescent
from rueda.records.steps_to_target import StepsToTarget
from rueda.records.throughput import Throughput
from rueda.report.plot import Plot

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
    noise: Columns = field(default_factory=dict)
    """the gradient noise scale where it was measured: updates, value, low, high (None: no end) and global_batch"""
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


Cell = str | tuple[float | None, str]
"""a text, or a number with the text that shows it"""


@dataclass(kw_only=True)
class Table:
    """A plain table."""

    title: str
    heads: list[str]
    rows: list[list[Cell]]
    note: str = ""

    @staticmethod
    def of(title: str, items: Iterable[Any], columns: Mapping[str, Callable[[Any], Cell]], note: str = "") -> Table:
        """Make a table with a row for each item, from the columns by their headings."""
        rows = [[cell(item) for cell in columns.values()] for item in items]
        return Table(title=title, heads=list(columns), rows=rows, note=note)


def field_as(name: str, write: Callable[[Any], str]) -> Callable[[Any], Cell]:
    """Give a column that shows a field of each item.

    >>> field_as("real", "{:.1f}".format)(2.25)
    (2.25, '2.2')
    """
    return lambda item: (getattr(item, name), write(getattr(item, name)))


@dataclass(kw_only=True)
class Section:
    """A study, the runs of a task, or what a file of another stage says: a heading, a sentence, tables and figures."""

    title: str
    task: str
    workers: int | None = None
    entries: list[Entry] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    is_study: bool = False
    throughput: Throughput | None = None
    steps: StepsToTarget | None = None
    descent: GradientDescent | None = None
    told: list[str] = field(default_factory=list)
    """sentences of a reader; those about techniques and runs stand before them"""
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """what was left out, and why"""

    def with_role(self, role: str) -> Entry | None:
        """Give the row that plays a role."""
        return next((entry for entry in self.entries if entry.role == role), None)


def short(value: float | None) -> float | None:
    """Keep six digits: a page shows no more, and is smaller.

    >>> short(1 / 3), short(4), short(None)
    (0.333333, 4, None)
    """
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")
