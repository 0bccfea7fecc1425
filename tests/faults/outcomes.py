"""What became of a fault, and what must hold after every one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from faults.plan import Fault, PlannedJob
from rueda.errors import RuedaError
from rueda.records import Run
from rueda.train.checkpoint import best_checkpoint, list_checkpoints, load_checkpoint

WENT_ON, REFORMED = "went on", "survivors went on"
REPAIRED, WENT_BACK = "repaired", "went back to its checkpoint"
NOT_REACHED = "not reached"
RESUMED, ANEW = "ended with an error, resumed", "ended with an error, begun anew"


@dataclass(kw_only=True)
class Outcome:
    """What became of one fault.

    Args:
        fault: the fault.
        job: the kind of job.
        outcome: one of the constants above; ``not reached`` if the training ended before.
        detected_seconds: from the fault until it was noticed: the end of the job, or the launcher's line.
        recovered_seconds: from the fault until an update that the job had not made before.
        full_seconds: of a lost host, from its return until all workers train.
        again: examples that were trained again.
        lost: examples that were never trained, of the whole job.
        said: what a person read.
        problems: invariants that do not hold.
    """

    fault: Fault
    job: str
    outcome: str = NOT_REACHED
    detected_seconds: float | None = None
    recovered_seconds: float | None = None
    full_seconds: float | None = None
    again: int = 0
    lost: int = 0
    said: str = ""
    problems: list[str] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """Return it for a file."""
        rounded = {
            name: None if value is None else round(value, 3)
            for name, value in (
                ("detected_seconds", self.detected_seconds),
                ("recovered_seconds", self.recovered_seconds),
                ("full_seconds", self.full_seconds),
            )
        }
        return {**asdict(self), **rounded}


def outcomes_of(job: PlannedJob) -> dict[int, Outcome]:
    """Return empty outcomes of the faults of a job, by their number."""
    return {fault.number: Outcome(fault=fault, job=job.name) for fault in job.faults}


def read_events(control: Path) -> list[dict[str, Any]]:
    """Return what the workers of a job have told, in the order of time."""
    file = control / "events.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # a worker was killed within a line
    return sorted(rows, key=lambda row: float(row["time"]))


def measure_recovery(found: dict[int, Outcome], rows: Sequence[dict[str, Any]], examples_per_step: int) -> None:
    """Fill in how long each fault took, and how many examples were trained again, from the events of a training.

    An update is new if the job had not been so far before. Between a fault and the next one, updates that are not new
    were made again. The recovery ends with the first update after the last of these, and, if the fault has ended the
    job, after that end.
    """
    furthest, current, begun, done, reached, ended = 0, None, 0.0, True, 0, 0.0
    for row in rows:
        if row["what"] == "fault":
            current, begun, done, reached = found[row["number"]], row["time"], False, row["step"]
            ended = begun + (current.detected_seconds or 0.0)
            if current.outcome == NOT_REACHED:
                current.outcome = WENT_ON
        elif row["what"] == "step":
            if row["step"] <= furthest:
                if current is not None:
                    current.again += examples_per_step
                    done = False
            elif current is not None and not done and row["step"] > reached and row["time"] > ended:
                current.recovered_seconds, done = row["time"] - begun, True
            furthest = max(furthest, row["step"])


def check_run(folder: Path, epochs: int) -> list[str]:
    """Return what is wrong with a run folder after a training: files that do not verify, rows that are not there."""
    problems = []
    checkpoints = folder / "checkpoints"
    best = best_checkpoint(checkpoints)
    for file in [*list_checkpoints(checkpoints), *([] if best is None else [best])]:
        try:
            load_checkpoint(file)
        except RuedaError as error:
            problems.append(str(error))
    if left := [file.name for file in checkpoints.glob(".*.part")]:
        problems.append(f"left behind: {left}")
    if epochs:
        try:
            if (rows := [row.epoch for row in Run(folder).rows("epoch")]) != list(range(1, epochs + 1)):
                problems.append(f"epochs {rows} instead of 1 to {epochs}")
        except RuedaError as error:
            problems.append(str(error))
    return problems


def left_in_shared_memory(pids: Iterable[int]) -> list[str]:
    """Return the files in shared memory that name one of these processes."""
    named = {str(pid) for pid in pids}
    there = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return [name for name in there if named & set(name.replace("-", "_").split("_"))]


def living(pids: Iterable[int]) -> list[int]:
    """Return which of these processes still run."""
    found = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
        except OSError:
            continue
    return found
