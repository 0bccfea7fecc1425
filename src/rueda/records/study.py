"""The study: named recipes side by side, as ``study.json``. The report reads it, and nothing else is kept in memory.

::

    study.json          the table: a row a technique, mean and spread over seeds
    runs/NAME-seedK/    the run of each seed of each row
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rueda.errors import RunError
from rueda.records.files import plain, write_atomically

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
class Study:
    """A table of techniques."""

    task: str
    workers: int
    epochs: int
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    rows: tuple[StudyRow, ...] = ()
    kind: str = "techniques"
    format: int = 1

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

    def to_json(self) -> str:
        """Write strict JSON: NaN and infinity become null."""
        return json.dumps(plain({"format": self.format, "kind": self.kind, **asdict(self)}), indent=1)

    @classmethod
    def from_json(cls, text: str, *, source: str = "study.json") -> Study:
        """Read a study; a broken one is refused in one line."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{source}: expected JSON, got: {error}; restore it or remove it") from None
        if not isinstance(data, dict) or data.get("kind") != "techniques" or not isinstance(data.get("rows"), list):
            raise RunError(f"{source}: expected a study of techniques with its rows; it is another file or damaged")
        if data.get("format") != 1:
            raise RunError(f"{source}: expected format 1, got {data.get('format')!r}; use a newer Rueda")
        try:
            rows = tuple(_row(row) for row in data["rows"])
            known = {item.name for item in fields(cls)}
            study = cls(**{**{name: value for name, value in data.items() if name in known}, "rows": rows})
            _check(study)
        except (TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{source}: expected the fields of a study, got: {error}; restore it or remove it") from None
        return study

    @classmethod
    def load(cls, file: Path | str) -> Study:
        """Read ``study.json``, or that of a folder."""
        file = Path(file) / "study.json" if Path(file).is_dir() else Path(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{file}: expected a study, got: {error}; check the path") from None
        return cls.from_json(text, source=str(file))

    def save(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomically(file, (self.to_json() + "\n").encode())


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Give mean and sample standard deviation; the latter needs two values.

    >>> mean_and_spread([0.5, 1.0]), mean_and_spread([0.8]), mean_and_spread([])
    ((0.75, 0.3535...), (0.8, None), (None, None))
    """
    if not values:
        return None, None
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


def _row(data: dict[str, Any]) -> StudyRow:
    known = {item.name for item in fields(StudyRow)}
    values = {name: value for name, value in data.items() if name in known}
    for name in ("seeds", "runs"):
        values[name] = tuple(values.get(name, ()))
    return StudyRow(**values)


def _check(study: Study) -> None:
    """Refuse what would fail later, far from the file."""
    for name, value in (("task", study.task), ("command", study.command)):
        _expect(value, str, name, "a text")
    for name in ("workers", "epochs"):
        _expect(getattr(study, name), int, name, "a whole number")
    _expect(study.environment, dict, "environment", "a table")
    for row in study.rows:
        for name in ("name", "summary", *(f"runs[{index}]" for index in range(len(row.runs)))):
            value = row.runs[int(name[5:-1])] if name.startswith("runs") else getattr(row, name)
            _expect(value, str, f"{name} of row {row.name}", "a text")
        for name in ("workers", "global_batch", "diverged"):
            _expect(getattr(row, name), int, f"{name} of row {row.name}", "a whole number")
        for name in ("epochs", "updates", "seconds", "images_per_second"):
            _expect(getattr(row, name), (int, float), f"{name} of row {row.name}", "a number")
        for name in ("test_accuracy", "test_accuracy_spread", "train_accuracy", "train_accuracy_spread"):
            _expect(getattr(row, name), (int, float, type(None)), f"{name} of row {row.name}", "a number")
        _expect(row.against_one_worker, (int, float, type(None)), f"against_one_worker of row {row.name}", "a number")
        _expect(row.rehearsed, bool, f"rehearsed of row {row.name}", "true or false")
        if row.verdict not in (None, "kept", "lost", "diverged"):
            raise ValueError(f"verdict of row {row.name} = {row.verdict!r} is not kept, lost or diverged")


def _expect(value: Any, kinds: type | tuple[type, ...], name: str, noun: str) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"{name} = {value!r} is not {noun}")
