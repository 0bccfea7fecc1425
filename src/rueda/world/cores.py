"""The number of cores that a process may use, and the spin count of OpenMP threads.

Both are needed by the launcher, which does not import torch, and by every worker.

Threads of libgomp, torch's OpenMP, spin for 300,000 iterations at a barrier before they sleep. On a machine that is
busy with other work, a spinning thread may occupy the core that the last thread needs: a small CNN on 2 cores fell from
10,300 images/s to 280. With 10,000 iterations it reaches 9,700 images/s on an idle machine and 1,200 on the busy one;
without spinning (``OMP_WAIT_POLICY=PASSIVE``) 6,500 and 1,700.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_SPIN_TURNS = "10000"


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use: its affinity, limited by the quotas of its control groups.

    A container or a batch job may show 64 cores but have a quota of two; ``os.cpu_count()`` still returns 64.

    Args:
        root: the directory that contains ``proc`` and ``sys``.
    """
    return max(1, min([_bound_to(), *(round(quota) for quota in _quotas(root))]))


def has_own_core(size: int, root: Path = Path("/")) -> bool:
    """Return whether each of the processes of this host that work together has a core.

    They have one if they share enough cores, or if a launcher has bound each of them to some of its own. A quota of
    control groups is shared by all of them.

    Args:
        size: the number of the processes.
        root: the directory that contains ``proc`` and ``sys``.
    """
    mine, cores = _bound_to(), os.cpu_count() or 1
    return all(round(quota) >= size for quota in _quotas(root)) and (mine >= size or mine * size <= cores)


def _bound_to() -> int:
    """Return the number of cores on which the scheduler may run this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of this process's control groups and of their parents.

    Control groups of version 2 form one hierarchy, where ``cpu.max`` holds "quota period" or "max period". Version 1
    has a hierarchy for each controller, with one file for the quota (-1: no limit) and one for the period.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):  # not Linux
        return
    for group in groups:
        _, colon, rest = group.partition(":")
        controllers, second_colon, path = rest.partition(":")
        names = set(controllers.split(","))
        if not (colon and second_colon) or (controllers and "cpu" not in names):
            continue
        tree = root / "sys/fs/cgroup"
        if controllers:  # CentOS 7 lists "cpuacct,cpu", but its folder is "cpu,cpuacct"
            folders = tree.iterdir() if tree.is_dir() else ()
            tree = next((each for each in folders if set(each.name.split(",")) == names), tree / controllers)
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        # In a container the path may be that of the host, where only the group at the root is visible.
        for folder in (place := tree / path.strip("/"), *place.parents):
            try:
                quota, period = " ".join((folder / file).read_text() for file in files).split()
                if quota != "max" and int(quota) > 0:
                    yield int(quota) / int(period)
            except (OSError, ValueError):
                pass  # this group sets no quota
            if folder == tree:
                break


def waiting(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that limits spinning, or nothing if the user has set one of the two variables.

    libgomp reads it when torch is imported.

    >>> waiting({}), waiting({"OMP_WAIT_POLICY": "ACTIVE"})
    ({'GOMP_SPINCOUNT': '10000'}, {})
    """
    decided = "GOMP_SPINCOUNT" in environ or "OMP_WAIT_POLICY" in environ
    return {} if decided else {"GOMP_SPINCOUNT": _SPIN_TURNS}
