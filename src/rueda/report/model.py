"""The contents of a page, as read from files: numbers are finite or None; texts are not escaped yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rueda.records.comparison import Comparison
from rueda.records.metric import ACCURACY, MetricInfo
from rueda.records.recipe.recipe import Recipe
from rueda.report.plot import Plot
from rueda.terminal.table import TextTable

Columns = dict[str, list[float | None]]
"""lists of equal length, by name"""


@dataclass(kw_only=True)
class Line:
    """One run: a line in the figures."""

    name: str
    task: str
    entry: int = 0
    """index of its row in the table"""
    recipe: Recipe | None = None
    """None if it cannot be read"""
    rehearsed: bool = False
    diverged: bool = False
    metrics: tuple[MetricInfo, ...] = ()
    """the metrics of the run, the primary one first"""
    unit: str = "images"
    """what its throughput counts"""
    progress: Columns = field(default_factory=dict)
    """epochs, updates, seconds and the measured values, one of each per epoch"""
    rate: Columns = field(default_factory=dict)
    """corners of the learning rate's curve: epochs, updates, seconds and rate"""
    rate_source: str = ""
    """how the rates are known, for the note of the figure"""
    batch: Columns = field(default_factory=dict)
    """corners of the global batch's curve: epochs, updates, seconds and global_batch"""
    noise: Columns = field(default_factory=dict)
    """the gradient noise scale where it was measured: updates, value, low, high (None: no bound) and global_batch"""
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
    epochs_range: tuple[int, int] | None = None
    """the fewest and the most epochs of a seed; None: all have the same number"""
    updates_range: tuple[int, int] | None = None
    test: float | None = None
    """the section's metric on test data"""
    test_spread: float | None = None
    train: float | None = None
    """the same on the training batches of the last epoch"""
    train_spread: float | None = None
    validation: float | None = None
    """the same on validation data, by which rows are chosen; None: there are none"""
    others: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """further metrics by name on each set of examples"""
    seconds: float | None = None
    images_per_second: float | None = None
    model_flops_utilisation: float | None = None
    rehearsed: bool = False
    diverged: bool = False
    num_diverged: int = 0
    """the number of seeds that diverged"""
    num_seeds: int = 1
    against: float | None = None
    """points above (or, negative, below) one worker; of a metric that is no fraction, its change in percent"""
    interval: tuple[float, float] | None = None
    """the 90 % interval of that difference; None: not known"""
    verdict: str | None = None
    """kept, lost, undecided or diverged"""
    role: str = "other"
    """base (one worker), naive, best, control (one worker with the best row's remedy) or other"""

    @property
    def deciding(self) -> float | None:
        """The value by which rows are chosen: on validation data, where there are some, or on test data."""
        return self.test if self.validation is None else self.validation


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
        """Make a table with a row for each item; ``columns`` maps each heading to the function that makes its cell."""
        rows = [[cell(item) for cell in columns.values()] for item in items]
        return Table(title=title, heads=list(columns), rows=rows, note=note)

    @property
    def texts(self) -> list[list[str]]:
        """The texts of all cells."""
        return [[cell if isinstance(cell, str) else cell[1] for cell in row] for row in self.rows]

    @property
    def left(self) -> list[str]:
        """The headings of the columns of texts; the other columns hold numbers, which are aligned to the right."""
        return [head for at, head in enumerate(self.heads) if any(isinstance(row[at], str) for row in self.rows)]

    def on_terminal(self, title: str) -> TextTable:
        """Return the same table for a terminal."""
        return TextTable(title, self.heads, self.texts, left=self.left, caption=self.note)


def field_as(name: str, write: Callable[[Any], str]) -> Callable[[Any], Cell]:
    """Return a column that shows a field of each item.

    >>> field_as("real", "{:.1f}".format)(2.25)
    (2.25, '2.2')
    """
    return lambda item: (getattr(item, name), write(getattr(item, name)))


@dataclass(kw_only=True)
class Section:
    """A part of the page, with sentences, tables and figures: a study, the runs of a task, or another record."""

    title: str
    task: str
    entries: list[Entry] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    is_study: bool = False
    metric: MetricInfo = ACCURACY
    """what the rows are compared by"""
    unit: str = "images"
    """what the throughput counts"""
    tolerance: float | None = None
    """how much worse a row of a study may be and still be kept"""
    strongest: str = ""
    """name of the best row of one worker; empty: there is none but the base"""
    remains: Comparison | None = None
    """the best row of many workers against the strongest of one"""
    told: list[str] = field(default_factory=list)
    """further sentences of the readers; those about techniques and runs come first"""
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """what was left out of the page, and why"""

    def with_role(self, role: str) -> Entry | None:
        """Return the row that has a role, if there is one."""
        return next((entry for entry in self.entries if entry.role == role), None)


def short(value: float | None) -> float | None:
    """Round to six significant digits, which is all that a page shows, so that the page is smaller.

    >>> short(1 / 3), short(4), short(None)
    (0.333333, 4, None)
    """
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")
