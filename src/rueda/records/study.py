"""The study: named recipes side by side, as ``study.json``. The report reads it, and nothing else is kept in memory.

::

    study.json          the table: a row a technique, mean and spread over seeds
    runs/NAME-seedK/    the run of each seed of each row
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rueda.records.json_record import FORMAT, JsonRecord, demand, demand_numbers

BASELINE = "one-worker"
"""the row that all others are measured against"""
KEPT_POINTS = -1.0
"""at most one point of test accuracy below one worker counts as kept"""


@dataclass(frozen=True, kw_only=True)
class StudyRow:
    """One line of the table. Accuracies are fractions; what was not measured is None."""

    name: str
    """the named recipe, or several joined by ``+``"""
    summary: str
    """what it changes, in a line"""
    workers: int
    global_batch: int
    """at the end of the training"""
    epochs: int
    updates: int
    test_accuracy: float | None
    """mean over the seeds that did not diverge"""
    test_accuracy_spread: float | None = None
    """sample standard deviation over them; None for one seed"""
    train_accuracy: float | None = None
    """of the last epoch while it ran"""
    train_accuracy_spread: float | None = None
    seconds: float
    """training time on this machine, evaluation excluded: mean over seeds"""
    images_per_second: float
    """on this machine; of a rehearsal never those of N machines"""
    rehearsed: bool
    """the workers were virtual, in one process"""
    seeds: tuple[int, ...] = ()
    diverged: int = 0
    """how many seeds diverged"""
    against_one_worker: float | None = None
    """points of test accuracy above (+) or below (-) the one-worker row"""
    verdict: str | None = None
    """kept (within 1 point of one worker, or above), lost, or diverged"""
    runs: tuple[str, ...] = ()
    """the run folders, relative to the study's"""


@dataclass(frozen=True, kw_only=True)
class Study(JsonRecord):
    """A table of techniques."""

    FILE: ClassVar = "study.json"
    NOUN: ClassVar = "a study"
    COMMAND: ClassVar = "rueda study"

    task: str
    workers: int
    epochs: int
    command: str = ""
    """the last that wrote here"""
    commands: tuple[str, ...] = ()
    """all that did, in their order; empty in older files"""
    recipe: str = ""
    """the base recipe of all rows as TOML, without its seed; empty in older files"""
    task_file: str | None = None
    """SHA-256 of the file that defines the task; None for a built-in one, and in older files"""
    environment: dict[str, Any] = field(default_factory=dict)
    rows: tuple[StudyRow, ...] = ()
    kind: str = "techniques"
    format: int = FORMAT

    def row(self, name: str) -> StudyRow | None:
        """Find a row by its name."""
        return next((row for row in self.rows if row.name == name), None)

    def best(self) -> StudyRow | None:
        """Give the rehearsed row with the highest test accuracy; one of which a seed diverged is none."""
        many = [row for row in self.rows if row.rehearsed and row.diverged == 0 and row.test_accuracy is not None]
        return max(many, key=lambda row: row.test_accuracy or 0.0, default=None)

    def judged(self) -> Study:
        """Compare every row with the one-worker row.

        >>> row = StudyRow(name="one-worker", summary="", workers=1, global_batch=64, epochs=3, updates=561,
        ...     test_accuracy=0.913, seconds=4.0, images_per_second=9000.0, rehearsed=False)
        >>> naive = replace(row, name="naive", workers=8, test_accuracy=0.726, rehearsed=True)
        >>> study = Study(task="glyphs-cnn", workers=8, epochs=3, rows=(row, naive)).judged()
        >>> [(row.against_one_worker, row.verdict) for row in study.rows]
        [(None, None), (-18.7, 'lost')]
        """
        base = self.row(BASELINE)
        return replace(self, rows=tuple(_judge(row, base) for row in self.rows))

    def check(self) -> None:
        """Refuse a verdict that nobody gives, and numbers of things below zero."""
        demand(self.workers >= 1, "study.workers", "1 or more", self.workers)
        for index, row in enumerate(self.rows):
            where = f"study.rows[{index}]"
            demand_numbers(row, where, above=("workers", "global_batch"), from_zero=("epochs", "updates", "diverged"))
            if row.verdict not in (None, "kept", "lost", "diverged"):
                raise ValueError(f"verdict of row {row.name}: expected kept, lost or diverged, got {row.verdict!r}")


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Give mean and sample standard deviation; the latter needs two values, and both need finite ones.

    >>> mean_and_spread([0.5, 1.0]), mean_and_spread([0.8]), mean_and_spread([]), mean_and_spread([1.0, math.inf])
    ((0.75, 0.3535...), (0.8, None), (None, None), (nan, nan))
    """
    if not values:
        return None, None
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _judge(row: StudyRow, base: StudyRow | None) -> StudyRow:
    points = None
    if base is not None and row is not base and row.test_accuracy is not None and base.test_accuracy is not None:
        points = round(100 * (row.test_accuracy - base.test_accuracy), 6)
    verdict = None
    if row.diverged > 0:  # a recipe that sometimes diverges keeps nothing, whatever its other seeds reach
        verdict = "diverged"
    elif points is not None:
        verdict = "kept" if points >= KEPT_POINTS else "lost"
    return replace(row, against_one_worker=points, verdict=verdict)
