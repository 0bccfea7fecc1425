"""Points of a grid, spread over the workers, kept as they come, the same to the last bit whoever computes them.

Worker r of N takes every N-th of the points that are missing. Each point is a line in a file of its worker
(``points-R.jsonl``), written as soon as it is known: a command that was stopped or killed goes on where it was, on any
number of workers, and has lost the point under way at most. The file begins with a checksum of all that the values
depend on; points of another model, data set or grid are never taken for those of this one.

On a CPU each worker computes with one thread: how many threads share a sum changes its last bits, so two workers of
one thread would not give what one worker of two threads gives. More workers are the way to use more cores.
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
from rueda.examine.objective.examples import Inputs
from rueda.examine.objective.objective import Objective, Values, checksum
from rueda.records.landscape import Sheet
from rueda.terminal.points import PointsProgress
from rueda.world import World, current

Objectives = Mapping[str, Objective]
"""by split: ``train``, ``test``; they share one model (:meth:`Objective.with_examples`)"""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Who computes the points, and what the user sees meanwhile."""

    world: World | None = None
    """the workers; by default those of this process"""
    folder: Path | None = None
    """where points are kept as they come; None keeps nothing"""
    progress: bool = False
    threads: int = 1
    """of each worker on a CPU; more than 1 may change last bits with the number of workers"""


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
    """Give the values of every split at every point.

    Args:
        objectives: by split, all on one model.
        num_points: how many points there are.
        go: moves the model to a point, by its number.
        key: what tells these points from others, beside model and examples: axes, directions.
        execution: who computes.
        description: of the progress bar.
        recalibrate_on: inputs over which batch-norm statistics are recomputed at every point.
    """
    execution = execution or Execution()
    world = execution.world or current()
    first = next(iter(objectives.values()))
    if any(other.model is not first.model for other in objectives.values()):
        raise ExamineError("the splits of a surface: expected one model, got several; use Objective.with_examples")
    told = [one.fingerprint() for one in objectives.values()]
    if recalibrate_on is not None:
        told.append(checksum(recalibrate_on if isinstance(recalibrate_on, tuple) else [recalibrate_on]))
    journal = Journal(execution.folder, digest([torch.__version__, *objectives, *told, *key]), world.rank)
    done: dict[int, list[Values]] = world.broadcast_object(journal.read() if world.is_main else {})
    done = {index: values for index, values in done.items() if index < num_points}
    missing = [index for index in range(num_points) if index not in done]
    mine = missing[world.rank :: world.size]
    new: dict[int, list[Values]] = {}
    bar = PointsProgress(speak=execution.progress and world.is_main, description=description, total=num_points,
                         done=len(done))  # fmt: skip
    with bar, first, _threads(first.device, execution.threads), contextlib.closing(journal):
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
    """Lay the values of each split out in rows."""
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
    """Give evenly spaced numbers, both ends included; the middle of a symmetric odd axis is exactly 0.

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
    """Give a short checksum of texts and numbers.

    >>> digest([1, "a"]) == digest([1, "a"]), digest([1, "a"]) == digest([1, "b"])
    (True, False)
    """
    return hashlib.blake2b(repr(list(parts)).encode(), digest_size=8).hexdigest()


class Journal:
    """The points as they come, in a file a worker; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, key: str, rank: int = 0) -> None:
        self._key = key
        self._folder = folder
        self._file = None if folder is None else folder / f"points-{rank}.jsonl"
        self._stream = contextlib.ExitStack()
        self._write: Callable[[str], object] | None = None

    def read(self) -> dict[int, list[Values]]:
        """Read the points of all workers that belong to this key; a torn last line is passed over."""
        found: dict[int, list[Values]] = {}
        for file in sorted(self._folder.glob("points-*.jsonl")) if self._folder is not None else []:
            lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
            if lines[0] != self._head():
                continue
            for line in lines[1:-1]:  # what follows the last line end is empty or torn
                with contextlib.suppress(ValueError, TypeError):
                    index, values = json.loads(line)
                    found[int(index)] = [Values(loss, error) for loss, error in values]
        return found

    def append(self, index: int, values: Sequence[Values]) -> None:
        """Keep a point."""
        if self._file is None:
            return
        try:
            if self._write is None:
                self._write = self._open(self._file)
            self._write(json.dumps([index, [[value.loss, value.error] for value in values]]) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self._file}: {error.strerror}; free space and start again") from None

    def close(self) -> None:
        """Let go of the file."""
        self._stream.close()

    def _head(self) -> str:
        return json.dumps({"points of": self._key})

    def _open(self, file: Path) -> Callable[[str], object]:
        file.parent.mkdir(parents=True, exist_ok=True)
        # An older file of this key goes on behind its last whole line; one of another key is written anew.
        kept = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        is_ours = kept.split("\n")[0] == self._head()
        stream = self._stream.enter_context(open(file, "a" if is_ours else "w", encoding="utf-8", buffering=1))  # noqa: SIM115
        if not is_ours:
            stream.write(self._head() + "\n")
        elif not kept.endswith("\n"):
            stream.write("\n")
        return stream.write


@contextlib.contextmanager
def _threads(device: torch.device, threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
