"""Threads for a worker: cores / workers, whoever launched it."""

from __future__ import annotations

import os

import pytest

from rueda.world import device
from rueda.world.identity import Identity

CASES = {  # launcher, local size, usable cores, cores of the machine, OMP_NUM_THREADS, threads
    "alone": ("nobody", 1, 8, 8, None, 8),
    "four of eight": ("torchrun", 4, 8, 8, None, 2),
    "more workers than cores": ("torchrun", 16, 8, 8, None, 1),
    "a job held to two cores": ("torchrun", 2, 2, 8, None, 1),
    "mpirun bound each worker to a core": ("Open MPI", 4, 1, 8, None, 1),
    "mpirun bound nobody": ("Open MPI", 4, 8, 8, None, 2),
    "srun bound each to two": ("Slurm", 4, 2, 8, None, 2),
    "the user's own number": ("torchrun", 4, 8, 8, "3", 3),
}


@pytest.mark.parametrize(("launcher", "local", "usable", "total", "told", "threads"), CASES.values(), ids=CASES)
def test_threads(
    launcher: str, local: int, usable: int, total: int, told: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "usable_cores", lambda: usable)
    monkeypatch.setattr(os, "cpu_count", lambda: total)
    identity = Identity(size=local, local_size=local, launcher=launcher)
    assert device.choose_threads(identity, {} if told is None else {"OMP_NUM_THREADS": told}) == threads
