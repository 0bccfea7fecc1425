"""The run: a folder with the files of one training.

::

    recipe.toml         how it was trained
    environment.json    the task and its file, machine, versions, commit, command
    metrics.jsonl       one row per epoch, per ``log_every`` steps, per measurement of the noise scale and per incident;
                        can be read during training
    checkpoints/        the state from which the training can be resumed
"""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rueda.errors import RunError, read_failure
from rueda.files.atomic import plain, write_atomically
from rueda.files.remote import AnyPath, any_path
from rueda.files.text import read_text
from rueda.records.environment import environment
from rueda.records.json_record import read_record
from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.records.profile import NoiseScale
from rueda.records.recipe.recipe import Recipe
from rueda.records.task_file import TaskFile

EPOCH, STEP, NOISE, INCIDENT = "epoch", "step", "noise", "incident"
"""the kinds of rows in ``metrics.jsonl``"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of ``metrics.jsonl``. A value that was not measured, or is not finite, is None."""

    kind: str
    """``epoch`` or ``step``"""
    epoch: int
    """the epochs that have ended (``epoch``) or begun (``step``)"""
    step: int
    """the number of updates so far"""
    examples: int
    """training examples seen by all workers so far"""
    seconds: float
    """training time so far, evaluation excluded"""
    train_loss: float | None
    train_accuracy: float | None
    test_loss: float | None = None
    test_accuracy: float | None = None
    test_correct: int | None = None
    """the number of test examples that were classified correctly"""
    images_per_second: float
    """throughput of all workers, in ``unit`` per second. Of an epoch: since the training was last begun, resumed or
    given other workers, or of the whole training if no update was made since; of a step: of the training so far"""
    unit: str = "images"
    """what the throughput counts: images, examples or tokens"""
    units: float | None = None
    """how many of them all workers have seen so far; None: as many as examples"""
    metrics: tuple[MetricInfo, ...] = ()
    """the task's metrics, the primary one first; empty in older files"""
    figures: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """the loss and the metrics by name of the sets ``train``, ``validation``, ``test`` (the primary test set) and of
    further test sets; empty in older files"""
    model_flops_utilisation: float | None = None
    """share of the peak of the workers' GPUs at this throughput; None: the peak is unknown, or the row of a step"""
    rate: float
    global_batch: int
    recalibrated: bool = False
    """batch-norm statistics were recomputed before this evaluation"""
    last: bool = False
    """the training ends with this epoch; older files do not say it"""
    rehearsed: bool = False
    """the workers were virtual: ``images_per_second`` is the throughput of this one process"""
    diverged: bool = False
    """the loss is no longer finite"""
    noise_scale: float | None = None
    """gradient noise scale, in examples, at the end of the epoch; None: not measured, or infinite"""
    noise_scale_low: float | None = None
    noise_scale_high: float | None = None
    """upper end of the noise scale's interval; None: the interval is unbounded"""

    @property
    def mean_images_per_second(self) -> float:
        """The throughput of all workers over the whole training so far, in ``unit`` per second."""
        return (self.examples if self.units is None else self.units) / max(self.seconds, 1e-9)

    @property
    def metric(self) -> MetricInfo:
        """The primary metric; in older files the accuracy, or the loss where there is none."""
        if self.metrics:
            return self.metrics[0]
        return LOSS if self.test_accuracy is None and self.train_accuracy is None else ACCURACY

    def value(self, of: str = "test", name: str | None = None) -> float | None:
        """Return a metric, or the primary one, on a set of examples; None if it was not measured or is not finite.

        >>> row = Row(kind="epoch", epoch=1, step=9, examples=90, seconds=1.0, train_loss=0.5, train_accuracy=None,
        ...     test_loss=0.25, images_per_second=90.0, rate=0.1, global_batch=10)
        >>> row.metric.name, row.value(), row.value("train"), row.value("validation")
        ('loss', 0.25, 0.5, None)
        """
        name = name or self.metric.name
        if self.figures:
            return self.figures.get(of, {}).get(name)
        found: float | None = getattr(self, f"{of}_{name}", None) if name in ("loss", "accuracy") else None
        return found

    def deciding(self, name: str | None = None) -> float | None:
        """Return the value by which choices are made: on validation data, where there are some, or on test data."""
        return self.value("validation" if "validation" in self.figures else "test", name)

    def to_json(self) -> str:
        """Return strict JSON, in which NaN and infinity are null."""
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
    """the global batch of the update in which the noise scale was measured"""
    noise: NoiseScale

    def to_json(self) -> str:
        """Return strict JSON, in which an infinite end of the interval is null."""
        own = {name: getattr(self, name) for name in ("epoch", "examples", "seconds", "global_batch")}
        return json.dumps(plain({"kind": NOISE, **own, **asdict(self.noise)}))

    @classmethod
    def read(cls, data: dict[str, Any]) -> NoiseRow:
        """Read a decoded line; an end of the interval that is null is infinite."""
        ends = {name: math.inf for name in ("value", "low", "high") if data.get(name) is None}
        return read_record(cls, {**data, "noise": {**data, **ends}}, "row")


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Something that happened to a worker: a line of kind ``incident``."""

    what: str
    """``silent-error``: parameters that differ from the other workers'; ``straggler``: a worker slower than the others;
    ``recovered``: a straggler that keeps up again; ``workers-lost``: an elastic job went on without some workers, from
    its last commit; ``workers-changed``: workers came or left, and nothing was lost"""
    step: int
    """the update after which the training went on"""
    epoch: int
    """epochs begun"""
    seconds: float
    """training time so far"""
    ranks: tuple[int, ...]
    """whose it was; of a silent error between two workers, both, since nobody knows which of them is right"""
    hosts: tuple[str, ...]
    """the names of their machines"""
    since_step: int
    """the last update before which all was well, as far as is known"""
    parameters: tuple[str, ...] = ()
    """the parameters that differed"""
    factor: float | None = None
    """of a straggler: the time in which it computes an update, over the median of the others"""
    excess_seconds: float | None = None
    """of a straggler: by how much each update is longer than that median"""
    workers_before: int | None = None
    """of an elastic job: the number of workers before; None if none of them is left to tell"""
    workers_after: int | None = None
    """of an elastic job: the number of workers with which it went on"""
    examples_again: int | None = None
    """of an elastic job: examples of all workers that were trained after the last commit, and are trained again; None
    if no worker is left to tell"""
    recovery_seconds: float | None = None
    """of an elastic job: the time from the last update before to the moment at which training went on"""
    text: str
    """the line that the training printed"""

    def to_json(self) -> str:
        """Return strict JSON."""
        return json.dumps(plain({"kind": INCIDENT, **asdict(self)}))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a training: what it was trained with from a step on, until the next stage begins."""

    from_step: int
    """the number of updates before it"""
    recipe: str
    """the recipe, as TOML"""
    task_file: str | None = None
    """SHA-256 of the file that defines the task; None for a built-in one"""
    commit: str | None = None
    command: str | None = None
    time: str | None = None


AnyRow = Row | NoiseRow | Incident
"""a line of ``metrics.jsonl``"""


def _row(data: dict[str, Any]) -> AnyRow:
    if data["kind"] == NOISE:
        return NoiseRow.read(data)
    return read_record(Incident, data, "row") if data["kind"] == INCIDENT else read_record(Row, data, "row")


def _check_can_hold(folder: Path) -> None:
    """Make a folder for checkpoints; told now, a mistake costs no epoch.

    Raises:
        RunError: it cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(f"cannot write into {folder}: {error.strerror}; choose another folder") from None


def _stage(recipe: Recipe, about: dict[str, Any], from_step: int) -> Stage:
    file = about.get("task_file")
    told = {name: None if about.get(name) is None else str(about[name]) for name in ("commit", "command", "time")}
    return Stage(
        from_step=from_step, recipe=recipe.to_toml(),
        task_file=file.get("sha256") if isinstance(file, dict) else None, **told,
    )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run folder. One worker writes it; any process may read it meanwhile."""

    folder: Path
    checkpoint_folder: str | None = field(default=None, kw_only=True)
    """where the checkpoints are, if not in the run folder: a path, or a URL on object storage"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # a string is accepted, too

    @property
    def checkpoints(self) -> AnyPath:
        """The folder of the checkpoints: the one that was given, or that the run has recorded, or its own."""
        given = self.checkpoint_folder
        if given is None and (self.folder / "environment.json").exists():
            recorded = self.environment().get("checkpoints")
            given = recorded if isinstance(recorded, str) else None
        return self.folder / "checkpoints" if given is None else any_path(given)

    def begin(
        self,
        recipe: Recipe,
        task: str,
        *,
        task_file: TaskFile | None = None,
        rehearsed: bool = False,
        from_step: int = 0,
        job: str | None = None,
    ) -> None:
        """Make the folder and write what is known before the first step.

        A resumed run keeps the record of its earlier stages: ``history`` in ``environment.json`` lists which recipe,
        task file and code were used, and from which step on.

        Args:
            recipe: how the task is trained.
            task: the task's name.
            task_file: the file that defines the task; None for a built-in task, or one made in a program.
            rehearsed: the workers are virtual, in one process.
            from_step: the number of updates after which a resumed run continues.
            job: the name of the elastic job that trains it, by which fresh workers know their own run.
        """
        self._check_writable()
        file = None if task_file is None else asdict(task_file)
        about = {"format": 1, "task": task, "task_file": file, "rehearsed": rehearsed, **environment()}
        if job is not None:
            about["job"] = job
        if (checkpoints := self.checkpoints) != self.folder / "checkpoints":
            about["checkpoints"] = str(checkpoints)
            if isinstance(checkpoints, Path):
                _check_can_hold(checkpoints)
        about["history"] = [asdict(one) for one in self._continued(recipe, about, from_step)]
        write_atomically(self.folder / "environment.json", json.dumps(about, indent=2).encode())
        recipe.save(self.folder / "recipe.toml")  # after environment.json: without it, a recipe is not that of a run
        self.metrics_file.touch()

    def history(self) -> list[Stage]:
        """Read which recipe and task file the run was trained with, and from which step on; the first stage first.

        A run of an older Rueda has one stage, of its present recipe.
        """
        about = self.environment()
        try:
            found = [read_record(Stage, one, "history") for one in about.get("history") or ()]
        except TypeError as error:
            raise RunError(f"{self.folder}/environment.json: {error}; the file is damaged") from None
        if found:
            return found
        return [_stage(self.recipe(), about, 0)]

    def _continued(self, recipe: Recipe, about: dict[str, Any], from_step: int) -> list[Stage]:
        """Return the history with the stage that begins now, if it differs from the one before."""
        now = _stage(recipe, about, from_step)
        if from_step == 0 or not (self.folder / "environment.json").exists():
            return [now]
        before = [stage for stage in self.history() if stage.from_step < from_step] or [replace(now, from_step=0)]
        last = before[-1]
        same = last.recipe == now.recipe and last.task_file == now.task_file and last.commit == now.commit
        return before if same else [*before, now]

    def check_folder(self, *, resume: bool = False) -> None:
        """Check that a training may write this folder.

        Raises:
            RunError: the folder holds a run, or that of the checkpoints holds some, and ``resume`` is False; or there
                is a recipe that does not belong to a run.
        """
        has_rows = self.metrics_file.exists() and self.metrics_file.stat().st_size > 0
        is_kept = not resume and any(self.checkpoints.glob("*.pt"))
        if is_kept and not has_rows and self.checkpoints != self.folder / "checkpoints":
            raise RunError(
                f"{self.checkpoints} holds checkpoints of another run; continue it with resume=True (--resume), or "
                "choose another folder for the checkpoints"
            )
        if is_kept or (has_rows and not resume):
            raise RunError(
                f"{self.folder} holds a run already; continue it with resume=True (--resume), or choose another folder"
            )
        recipe = self.folder / "recipe.toml"
        if recipe.exists() and not (self.folder / "environment.json").exists():
            raise RunError(
                f"{recipe} was not written by a run, and a run here would overwrite it; choose another folder"
            )

    @property
    def metrics_file(self) -> Path:
        """The path of the file of rows."""
        return self.folder / "metrics.jsonl"

    def append(self, row: AnyRow) -> None:
        """Append a row in one write, so that a reader never sees a part of it."""
        self.append_all([row])

    def append_all(self, rows: Iterable[AnyRow], *, sync: bool = True) -> None:
        """Append rows in one write; without ``sync`` the operating system decides when they reach the disk."""
        self._check_writable()
        try:
            with open(self.metrics_file, "ab", buffering=0) as stream:
                stream.write(b"".join(row.to_json().encode() + b"\n" for row in rows))
                if sync:
                    os.fsync(stream.fileno())
        except OSError as error:
            do = "make it writable" if error.errno == errno.EROFS else "free space"
            raise RunError(f"cannot write {self.metrics_file}: {error.strerror}; {do} and use --resume") from None

    def rows(self, kind: str | None = None) -> list[Row]:
        """Read the rows of epochs and steps, or only of one of the two kinds.

        Raises:
            RunError: the file is missing or damaged; an incomplete last line, of a killed process, is ignored.
            ValueError: ``kind`` is another one.
        """
        if kind not in (None, EPOCH, STEP):
            raise ValueError(f"kind: expected {EPOCH} or {STEP}, got {kind!r}; measurements are read by noise_rows()")
        kinds = (EPOCH, STEP) if kind is None else (kind,)
        return [row for row in self._read(kinds) if isinstance(row, Row)]

    def noise_rows(self) -> list[NoiseRow]:
        """Read the measurements of the gradient noise scale."""
        return [row for row in self._read((NOISE,)) if isinstance(row, NoiseRow)]

    def incidents(self) -> list[Incident]:
        """Read what happened to workers: silent errors, stragglers, and workers that were lost or came."""
        return [row for row in self._read((INCIDENT,)) if isinstance(row, Incident)]

    def all_rows(self) -> tuple[list[Row], list[NoiseRow]]:
        """Read the rows of epochs and steps, and the measurements of the noise scale."""
        found = list(self._read((EPOCH, STEP, NOISE)))
        return [row for row in found if isinstance(row, Row)], [row for row in found if isinstance(row, NoiseRow)]

    def noise_scales(self, group: str | None = None) -> list[NoiseScale]:
        """Read the measured noise scales of the whole model, or of one group of layers."""
        return [row.noise for row in self.noise_rows() if row.noise.group == group]

    def forget_after(self, step: int, epochs: float = math.inf) -> None:
        """Remove the rows after a step and those of epochs after ``epochs``; a resumed run writes them again.

        Incidents stay: they have happened, and are not written again.

        The row of an epoch is written before its checkpoint. If a run was killed between the two, it is resumed from an
        earlier checkpoint, perhaps of the same step, and ends that epoch once more.
        """
        self._check_writable()
        kept = [
            json.dumps(data)
            for _, data in self._lines()
            if data.get("kind") == INCIDENT
            or (data.get("step", 0) <= step and not (data.get("kind") == EPOCH and data.get("epoch", 0) > epochs))
        ]
        write_atomically(self.metrics_file, "".join(line + "\n" for line in kept).encode())

    def recipe(self) -> Recipe:
        """Read the recipe of the run."""
        return Recipe.load(self.folder / "recipe.toml")

    def environment(self) -> dict[str, Any]:
        """Read the task, machine, versions, commit and command of the run."""
        try:
            about = json.loads(read_text(self.folder / "environment.json"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.folder}: expected a run folder with environment.json, got: {read_failure(error)}"
            ) from None
        if not isinstance(about, dict):
            raise RunError(f"{self.folder}/environment.json: expected an object, got {type(about).__name__}")
        return about

    def task_file(self) -> TaskFile | None:
        """Read which file defines the run's task; None for a built-in task, and in older runs."""
        found = self.environment().get("task_file")
        try:
            return None if found is None else read_record(TaskFile, found, "task_file")
        except TypeError as error:
            raise RunError(f"{self.folder}/environment.json: {error}; the file is damaged") from None

    def task_name(self) -> str:
        """Return what :func:`rueda.load_task` takes to load the run's task: its file, or the name of a built-in task.

        Raises:
            RunError: the task file is no longer where it was.
        """
        file = self.task_file()
        if file is None:
            return str(self.environment().get("task"))
        if not Path(file.path).is_file():
            raise RunError(
                f"{self.folder}: its task file {file.path} is no longer there; put it back, or name the task"
            )
        return file.path

    def _read(self, kinds: Container[str]) -> Iterator[AnyRow]:
        for number, data in self._lines():
            if data.get("kind") in kinds:
                try:
                    yield _row(data)
                except TypeError as error:
                    raise self._damaged(number, str(error)) from None

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and contents of each line; an incomplete last line is still being written, and skipped."""
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

    def _check_writable(self) -> None:
        """Raise RunError if this run can only be read."""

    def _damaged(self, number: int, what: str) -> RunError:
        return RunError(f"{self.metrics_file}, line {number}: {what}; the file is damaged")
