"""Evaluate the points of a grid on all workers and save each of them; the values do not depend on who computes them.

Worker r of N evaluates every N-th of the missing points. Each point is a line in the file of its worker
(``points-R.jsonl``), written as soon as it is computed: a command that was stopped or killed continues where it was, on
any number of workers, and loses at most the current point. The file begins with a checksum of everything that the
values depend on, so that points of another model, data set or grid are never used.

On a CPU each worker computes with one thread: how many threads share a sum changes its last bits, so two workers of
one thread would not give the result of one worker with two. Use more workers to use more cores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rueda.errors import ExamineError, RunError
from rueda.examine.objective.examples import Inputs, parts
from rueda.examine.objective.objective import Objective, Values, checksum
from rueda.records.landscape import Sheet
from rueda.terminal.points import PointsProgress
from rueda.world import World, current

Objectives = Mapping[str, Objective]
"""objectives by split (``train``, ``test``) that share one model (:meth:`Objective.with_examples`)"""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Which workers compute the points, where points are saved, and whether progress is shown."""

    world: World | None = None
    """the workers; by default the world of this process"""
    folder: Path | None = None
    """the folder in which points are saved; None saves nothing"""
    progress: bool = False


def measure(
    objectives: Objectives,
    num_points: int,
    go: Callable[[int], None],
    *,
    key: Sequence[object],
    execution: Execution | None = None,
    description: str = "points",
    recalibrate_on: Inputs | None = None,
) -> dict[str, list[Values]]:
    """Evaluate every split at every point.

    Args:
        objectives: by split, all on one model.
        num_points: how many points there are.
        go: sets the model's parameters to a point, given by its index.
        key: what identifies these points besides model and examples: axes, directions.
        execution: which workers compute.
        description: the text of the progress bar.
        recalibrate_on: inputs over which batch-norm statistics are recomputed at every point.
    """
    execution = execution or Execution()
    world = execution.world or current()
    first = next(iter(objectives.values()))
    if any(other.model is not first.model for other in objectives.values()):
        raise ExamineError("the splits of a surface: expected one model, got several; use Objective.with_examples")
    told = [one.fingerprint() for one in objectives.values()]
    if recalibrate_on is not None:
        told.append(checksum(parts(recalibrate_on)))
    journal = Journal(execution.folder, digest([torch.__version__, *objectives, *told, *key]), world.rank)
    done: dict[int, list[Values]] = world.broadcast_object(journal.read() if world.is_main else {})
    done = {index: values for index, values in done.items() if index < num_points}
    missing = [index for index in range(num_points) if index not in done]
    mine = missing[world.rank :: world.size]
    new: dict[int, list[Values]] = {}
    bar = PointsProgress(speak=execution.progress and world.is_main, description=description, total=num_points,
                         done=len(done))  # fmt: skip
    with bar, first, _one_thread(first.device):
        for index in mine:
            go(index)
            if recalibrate_on is not None:
                first.recalibrate(recalibrate_on)
            new[index] = [one.values() for one in objectives.values()]
            journal.append(index, new[index])
            if bar.due:
                bar.show(min(num_points, len(done) + len(new) * world.size))
    for part in world.all_gather_object(new):
        done.update(part)
    return {name: [done[index][split] for index in range(num_points)] for split, name in enumerate(objectives)}


def to_sheets(values: Mapping[str, Sequence[Values]], num_columns: int) -> tuple[Sheet, ...]:
    """Arrange the values of each split in rows."""
    return tuple(
        Sheet(
            split=split,
            loss=_rows([value.loss for value in found], num_columns),
            error=_rows([value.error for value in found if value.error is not None], num_columns) or None,
        )
        for split, found in values.items()
    )


def _rows(values: Sequence[float], num_columns: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(values[start : start + num_columns]) for start in range(0, len(values), num_columns))


def axis(low: float, high: float, num_points: int) -> tuple[float, ...]:
    """Return evenly spaced numbers, both ends included; the middle of a symmetric odd axis is exactly 0.

    >>> axis(-1, 1, 5)
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    """
    if num_points < 2 or not low < high:
        raise ExamineError(
            f"an axis: expected 2 or more points from low to high, got {num_points} from {low} to {high}; correct it"
        )
    last = num_points - 1
    return tuple((low * (last - index) + high * index) / last for index in range(num_points))


def digest(parts: Sequence[object]) -> str:
    """Return a short checksum of texts and numbers.

    >>> digest([1, "a"]) == digest([1, "a"]), digest([1, "a"]) == digest([1, "b"])
    (True, False)
    """
    return hashlib.blake2b(repr(list(parts)).encode(), digest_size=8).hexdigest()


class Journal:
    """The points computed so far, in a file for each worker; without a folder nothing is saved."""

    def __init__(self, folder: Path | None, key: str, rank: int = 0) -> None:
        self._folder = folder
        self._head = json.dumps({"points of": key})
        self._file = None if folder is None else folder / f"points-{rank}.jsonl"
        self._is_begun = False

    def read(self) -> dict[int, list[Values]]:
        """Read the points of all workers that have this key; an incomplete last line is skipped."""
        found: dict[int, list[Values]] = {}
        for file in sorted(self._folder.glob("points-*.jsonl")) if self._folder is not None else []:
            lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
            if lines[0] != self._head:
                continue
            for line in lines[1:-1]:  # the text after the last line end is empty or incomplete
                with contextlib.suppress(ValueError, TypeError):
                    index, values = json.loads(line)
                    found[int(index)] = [Values(loss, error) for loss, error in values]
        return found

    def append(self, index: int, values: Sequence[Values]) -> None:
        """Save a point."""
        if self._file is None:
            return
        try:
            if not self._is_begun:
                self._begin(self._file)
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps([index, [[value.loss, value.error] for value in values]]) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self._file}: {error.strerror}; free space and start again") from None

    def _begin(self, file: Path) -> None:
        """Continue an older file of this key after its last complete line; replace a file of another key."""
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        if kept.split("\n")[0] != self._head:
            file.write_text(self._head + "\n", encoding="utf-8")
        elif not kept.endswith("\n"):
            with file.open("a", encoding="utf-8") as stream:
                stream.write("\n")
        self._is_begun = True


@contextlib.contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Compute with one thread on a CPU, so that the last bits do not depend on the number of workers."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
