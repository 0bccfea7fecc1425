"""Cores within a quota, and threads for a worker: cores / workers, whoever launched it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rueda.world import device
from rueda.world.cores import has_own_core, usable_cores
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


V1 = "cpu,cpuacct/{0}cpu.cfs_quota_us", "cpu,cpuacct/{0}cpu.cfs_period_us"
QUOTAS = {  # /proc/self/cgroup, files below /sys/fs/cgroup, cores of the eight that the affinity allows
    "no control groups": (None, {}, 8),
    "version 2, no quota": ("0::/", {"cpu.max": "max 100000"}, 8),
    "version 2, two cores": ("0::/", {"cpu.max": "200000 100000"}, 2),
    "half a core": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "more than there are": ("0::/", {"cpu.max": "6400000 100000"}, 8),
    "a group in a group": ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
    "the smallest": ("0::/a/b", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "600000 100000"}, 4),
    "a path of the host's": ("0::/docker/abc", {"cpu.max": "200000 100000"}, 2),
    "version 1": ("4:cpu,cpuacct:/a", {V1[0].format("a/"): "200000\n", V1[1].format("a/"): "100000\n"}, 2),
    "version 1, no quota": ("4:cpu,cpuacct:/", {V1[0].format(""): "-1\n", V1[1].format(""): "100000\n"}, 8),
    "version 1, a path of the host's": (
        "9:memory:/x\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/",
        {V1[0].format(""): "300000", V1[1].format(""): "100000"}, 3,
    ),
    "version 1, the folder's controllers in another order": (
        "4:cpuacct,cpu:/a", {V1[0].format("a/"): "200000\n", V1[1].format("a/"): "100000\n"}, 2,
    ),
    "version 1, no folder": ("4:cpuacct,cpu:/a", {}, 8),
    "odd lines": ("\nnonsense\n7:half\n0::/", {"cpu.max": "200000 100000"}, 2),
    "nonsense": ("0::/", {"cpu.max": "many"}, 8),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "files", "cores"), QUOTAS.values(), ids=QUOTAS)
def test_cores_within_a_quota(
    groups: str | None, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups + "\n")
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert usable_cores(tmp_path) == cores


OWN_CORES = {  # cores that this process is bound to, cores of the machine, cpu.max, processes, whether each has a core
    "enough for all": (8, 8, "max 100000", 8, True),
    "too many processes": (8, 8, "max 100000", 9, False),
    "each bound to two by its launcher": (2, 8, "max 100000", 4, True),
    "bound, but too many": (2, 8, "max 100000", 5, False),
    "a quota that all share": (8, 8, "200000 100000", 4, False),
    "a quota that is enough": (8, 8, "400000 100000", 4, True),
    "bound, and a quota that all share": (1, 8, "200000 100000", 4, False),
}


@pytest.mark.parametrize(("bound", "total", "quota", "size", "expected"), OWN_CORES.values(), ids=OWN_CORES)
def test_processes_with_a_core_of_their_own(
    bound: int, total: int, quota: str, size: int, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: total)
    for name, text in {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": quota}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert has_own_core(size, tmp_path) is expected
