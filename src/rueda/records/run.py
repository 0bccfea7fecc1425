"""The run: a folder that holds all of one training.

::

    recipe.toml         how it was trained
    environment.json    machine, versions, commit, command
    metrics.jsonl       a row an epoch, every k steps, and a measurement; append-only, readable while it grows
    checkpoints/        what it takes to go on
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rueda.errors import RunError
from rueda.files.atomic import write_atomically
from rueda.records.environment import environment
from rueda.records.profile import NoiseScale
from rueda.records.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of ``metrics.jsonl``. What was not measured is None; a number that is not finite is None too."""

    kind: str
    """``epoch`` or ``step``"""
    epoch: int
    """epochs finished (``epoch``) or begun (``step``)"""
    step: int
    """updates so far"""
    examples: int
    """training examples seen by all workers so far"""
    seconds: float
    """training time so far, evaluation excluded"""
    train_loss: float | None
    train_accuracy: float | None
    test_loss: float | None = None
    test_accuracy: float | None = None
    test_correct: int | None = None
    """how many test examples were right"""
    images_per_second: float
    """of all workers, since the row before of this kind"""
    rate: float
    global_batch: int
    recalibrated: bool = False
    """batch-norm statistics were recomputed before this evaluation"""
    rehearsed: bool = False
    """the workers were virtual: images/s are those of this one process"""
    diverged: bool = False
    """the loss is no longer finite"""
    noise_scale: float | None = None
    """the gradient noise scale in examples at the end of the epoch, if it is measured; None: not known, or infinite"""
    noise_scale_low: float | None = None
    noise_scale_high: float | None = None
    """upper end of its interval; None: there is none"""

    def to_json(self) -> str:
        """Write strict JSON: NaN and infinity, which it lacks, become null."""
        return _strict(asdict(self))


@dataclass(frozen=True, kw_only=True)
class NoiseRow:
    """A measurement of the gradient noise scale: a line of kind ``noise`` with the fields of :class:`NoiseScale`."""

    epoch: int
    """epochs begun"""
    examples: int
    """training examples seen by all workers so far"""
    seconds: float
    """training time so far"""
    global_batch: int
    """of the update it was measured in"""
    noise: NoiseScale

    def to_json(self) -> str:
        """Write strict JSON: an end that is infinite becomes null."""
        place = {"kind": "noise", "epoch": self.epoch, "examples": self.examples, "seconds": self.seconds}
        return _strict({**place, "global_batch": self.global_batch, **asdict(self.noise)})


@dataclass(frozen=True)
class Run:
    """A run folder, to be written by one worker and read by anybody."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # people write a string, too

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    def begin(self, recipe: Recipe, task: str, *, rehearsed: bool = False) -> None:
        """Make the folder and write what is known before the first step."""
        recipe.save(self.folder / "recipe.toml")
        about = {"format": 1, "task": task, "rehearsed": rehearsed, **environment()}
        write_atomically(self.folder / "environment.json", json.dumps(about, indent=2).encode())
        self.metrics_file.touch()

    @property
    def metrics_file(self) -> Path:
        """Where the rows stand."""
        return self.folder / "metrics.jsonl"

    def append(self, row: Row) -> None:
        """Add a row in one write, so that a reader never sees half of it."""
        self.append_all([row])

    def append_all(self, rows: Iterable[Row | NoiseRow], *, sync: bool = True) -> None:
        """Add rows in one write; without ``sync`` they reach the disk when the system likes, or with the next row."""
        try:
            with open(self.metrics_file, "ab", buffering=0) as stream:
                stream.write(b"".join(row.to_json().encode() + b"\n" for row in rows))
                if sync:
                    os.fsync(stream.fileno())
        except OSError as error:
            raise RunError(f"cannot write {self.metrics_file}: {error.strerror}; free space and use --resume") from None

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Read the rows, all or of one kind; a torn last line (a full disk, a kill) is passed over."""
        return [row for row in self._read() if kind is None or row.get("kind") == kind]

    def noise_scales(self, group: str | None = None) -> list[NoiseScale]:
        """Read the measured noise scales, of the whole model or of one group of layers; an open end is infinite."""
        names = [item.name for item in fields(NoiseScale) if item.name != "group"]
        found: list[NoiseScale] = []
        for row in self.rows("noise"):
            if row.get("group") == group:
                values: dict[str, Any] = {name: math.inf if row.get(name) is None else row[name] for name in names}
                found.append(NoiseScale(**values, group=group))
        return found

    def forget_after(self, step: int) -> None:
        """Drop the rows after a step: a resumed run writes them again."""
        kept = [json.dumps(row) for row in self._read() if row["step"] <= step]
        write_atomically(self.metrics_file, "".join(line + "\n" for line in kept).encode())

    def recipe(self) -> Recipe:
        """Read the recipe."""
        return Recipe.load(self.folder / "recipe.toml")

    def environment(self) -> dict[str, Any]:
        """Read where and with what it was run."""
        try:
            about = json.loads((self.folder / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.folder}: expected a run folder with environment.json, got: {error}") from None
        if not isinstance(about, dict):
            raise RunError(f"{self.folder}/environment.json: expected an object, got {type(about).__name__}")
        return about

    def _read(self) -> Iterator[dict[str, Any]]:
        try:
            lines = self.metrics_file.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise RunError(f"{self.folder}: expected a run folder with metrics.jsonl, but it is not there") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError:
                if number == len(lines):  # no line end: it was being written
                    return
                raise RunError(
                    f"{self.metrics_file}, line {number}: expected a JSON row; the file is damaged"
                ) from None


def _strict(values: dict[str, Any]) -> str:
    return json.dumps(
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
    )
