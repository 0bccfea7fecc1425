"""How many cores are there for a worker, and how do its threads wait for each other?

Asked by the launcher, which has no torch, and by every worker.

Threads of libgomp, torch's OpenMP, wait for each other in a loop of 300,000 turns before they sleep. On a machine that
is busy with something else, the thread that all wait for has lost its core to one that waits: a small CNN on 2 cores
fell from 10,300 images/s to 280. With 10,000 turns it keeps 9,700 on a quiet machine and 1,200 on that busy one;
threads that sleep at once (``OMP_WAIT_POLICY=PASSIVE``) reach 6,500 and 1,700.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_SPIN_TURNS = "10000"


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that this process may use: its affinity, within the CPU quota of its control groups.

    A container or a batch job may advertise 64 cores and be given the time of two: ``os.cpu_count()`` says 64.

    Args:
        root: where ``/proc`` and ``/sys`` are found.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(round(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Give the quotas, in cores, of this process's control groups and of those that hold them.

    Version 2 has one tree, in which ``cpu.max`` says "quota period" or "max period"; version 1 has a tree for each
    controller, with a file for each number and a quota of -1 where there is none.
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
        if controllers:  # CentOS 7 says "cpuacct,cpu", and its folder is "cpu,cpuacct"
            folders = tree.iterdir() if tree.is_dir() else ()
            tree = next((each for each in folders if set(each.name.split(",")) == names), tree / controllers)
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        # In a container the path may be the host's, and only the top of the tree be there.
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
    """Give the variable that lets threads sleep sooner, unless somebody has decided; read when torch is loaded.

    >>> waiting({}), waiting({"OMP_WAIT_POLICY": "ACTIVE"})
    ({'GOMP_SPINCOUNT': '10000'}, {})
    """
    decided = "GOMP_SPINCOUNT" in environ or "OMP_WAIT_POLICY" in environ
    return {} if decided else {"GOMP_SPINCOUNT": _SPIN_TURNS}
