"""Faults of the campaign that forked workers suffer: 2 and 3 workers, a rehearsal, and a script for Horovod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.outcomes import RESUMED, WENT_BACK, WENT_ON
from faults.plan import Fault, PlannedJob
from faults.training import run_training

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk that a fault fills")


def planned(name: str, *faults: tuple[str, str, int, int, float]) -> PlannedJob:
    """Return a job with some faults: their kind, function, rank, update, and seconds or share."""
    return PlannedJob(
        name=name, number=0,
        faults=tuple(
            Fault(number=number, kind=kind, how=how, rank=rank, step=step, seconds=value, share=value, bit=21)
            for number, (kind, how, rank, step, value) in enumerate(faults)
        ),
    )  # fmt: skip


JOBS = {
    "two workers": (
        planned(
            "fit-2", ("bit flipped", "flip_bit", 1, 9, 0.5), ("SIGSTOP", "stop", 1, 20, 0.2),
            ("kill -9", "kill", 0, 32, 0.003), ("out of memory", "run_out_of_memory", 1, 60, 0.0),
        ),
        [WENT_BACK, WENT_ON, RESUMED, RESUMED],
    ),
    "two workers and their files": (
        planned(
            "fit-2", ("clock set back", "set_clock_back", 0, 8, 3600.0), ("file torn", "tear", 0, 27, 0.5),
            ("store key poisoned", "poison_store", 1, 50, 0.0),
        ),
        [WENT_ON, RESUMED, WENT_ON],
    ),
    "three workers": (
        planned("fit-3", ("kill -9", "kill", 2, 16, 0.001), ("file altered", "alter", 0, 34, 0.7)),
        [RESUMED, RESUMED],
    ),
    "a rehearsal": (
        planned("rehearse-4", ("kill -9", "kill", 0, 16, 0.002), ("file torn", "tear_rows", 0, 27, 0.0)),
        [RESUMED, RESUMED],
    ),
    "Horovod": (
        planned("hvd-2", ("kill -9", "kill", 1, 23, 0.004), ("file altered", "alter", 0, 48, 0.2)),
        [RESUMED, RESUMED],
    ),
}  # fmt: skip
DISKS = planned("fit-2", ("disk full", "fill_disk", 0, 20, 0.0), ("disk read-only", "make_read_only", 0, 44, 0.0))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all jobs, which share the trainings that they are compared with."""
    return tmp_path_factory.mktemp("faults")


def check(job: PlannedJob, expected: list[str], folder: Path) -> None:
    found = run_training(job, folder)
    assert [one.problems for one in found] == [[]] * len(found)
    assert [one.outcome for one in found] == expected
    assert all(one.lost == 0 for one in found)


@pytest.mark.parametrize(("job", "expected"), JOBS.values(), ids=JOBS)
def test_a_training_survives_or_is_resumed_bit_for_bit(
    job: PlannedJob, expected: list[str], place: Path, tmp_path: Path
) -> None:
    check(job, expected, place / tmp_path.name)


@ROOT
def test_a_disk_that_is_full_or_read_only(place: Path) -> None:
    check(DISKS, [RESUMED, RESUMED], place / "disks")
