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
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rueda.errors import RunError
from rueda.files.atomic import plain, write_atomically
from rueda.records.environment import environment
from rueda.records.json_record import read_record
from rueda.records.profile import NoiseScale
from rueda.records.recipe.recipe import Recipe

EPOCH, STEP, NOISE = "epoch", "step", "noise"
"""the kinds of rows"""


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

    @property
    def mean_images_per_second(self) -> float:
        """Images a second of all workers over the whole training so far."""
        return self.examples / max(self.seconds, 1e-9)

    def to_json(self) -> str:
        """Write strict JSON: NaN and infinity, which it lacks, become null."""
        return json.dumps(plain(asdict(self)))


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
        own = {name: getattr(self, name) for name in ("epoch", "examples", "seconds", "global_batch")}
        return json.dumps(plain({"kind": NOISE, **own, **asdict(self.noise)}))

    @classmethod
    def read(cls, data: dict[str, Any]) -> NoiseRow:
        """Take a line apart; an end that is null is infinite."""
        ends = {name: math.inf for name in ("value", "low", "high") if data.get(name) is None}
        return read_record(cls, {**data, "noise": {**data, **ends}}, "row")


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

    def rows(self, kind: str | None = None) -> list[Row]:
        """Read the rows of epochs and steps, or of one of these.

        Raises:
            RunError: there is no file, or a line of it is damaged; a torn last line (a kill) is passed over.
            ValueError: rows of another kind were asked for.
        """
        if kind not in (None, EPOCH, STEP):
            raise ValueError(f"kind: expected {EPOCH} or {STEP}, got {kind!r}; measurements are read by noise_rows()")
        kinds = (EPOCH, STEP) if kind is None else (kind,)
        return [row for row in self._read(kinds) if isinstance(row, Row)]

    def noise_rows(self) -> list[NoiseRow]:
        """Read the measurements of the gradient noise scale."""
        return [row for row in self._read((NOISE,)) if isinstance(row, NoiseRow)]

    def all_rows(self) -> tuple[list[Row], list[NoiseRow]]:
        """Read both kinds at once."""
        found = list(self._read((EPOCH, STEP, NOISE)))
        return [row for row in found if isinstance(row, Row)], [row for row in found if isinstance(row, NoiseRow)]

    def noise_scales(self, group: str | None = None) -> list[NoiseScale]:
        """Read the measured noise scales, of the whole model or of one group of layers; an open end is infinite."""
        return [row.noise for row in self.noise_rows() if row.noise.group == group]

    def forget_after(self, step: int) -> None:
        """Drop the rows after a step: a resumed run writes them again."""
        kept = [json.dumps(data) for _, data in self._lines() if data.get("step", 0) <= step]
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

    def _read(self, kinds: Container[str]) -> Iterator[Row | NoiseRow]:
        for number, data in self._lines():
            if data.get("kind") in kinds:
                try:
                    yield NoiseRow.read(data) if data["kind"] == NOISE else read_record(Row, data, "row")
                except TypeError as error:
                    raise self._damaged(number, str(error)) from None

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Give each line with its number; a last one without an end is still being written."""
        try:
            lines = self.metrics_file.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise RunError(f"{self.folder}: expected a run folder with metrics.jsonl, but it is not there") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                if number == len(lines):
                    return
                data = None
            if not isinstance(data, dict):
                raise self._damaged(number, "expected a JSON row")
            yield number, data

    def _damaged(self, number: int, what: str) -> RunError:
        return RunError(f"{self.metrics_file}, line {number}: {what}; the file is damaged")
