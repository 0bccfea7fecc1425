"""How many cores are there for a worker, and how do its threads wait for each other?

Asked by the launcher, which has no torch, and by every worker.

Threads of libgomp, torch's OpenMP, wait for each other in a loop of 300,000 turns before they sleep. On a machine that
is busy with something else, the thread that all wait for has lost its core to one that waits: a small CNN on 2 cores
fell from 10,300 images/s to 280. With 10,000 turns it keeps 9,700 on a quiet machine and 1,200 on that busy one;
threads that sleep at once (``OMP_WAIT_POLICY=PASSIVE``) reach 6,500 and 1,700.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_SPIN_TURNS = "10000"


def usable_cores() -> int:
    """Count the cores that this process may use: its affinity, within its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        if limit != "max":
            cores = min(cores, max(1, round(int(limit) / int(period))))
    except (OSError, ValueError):
        pass  # no cgroup v2 here
    return cores


def waiting(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the variable that lets threads sleep sooner, unless somebody has decided; read when torch is loaded.

    >>> waiting({}), waiting({"OMP_WAIT_POLICY": "ACTIVE"})
    ({'GOMP_SPINCOUNT': '10000'}, {})
    """
    decided = "GOMP_SPINCOUNT" in environ or "OMP_WAIT_POLICY" in environ
    return {} if decided else {"GOMP_SPINCOUNT": _SPIN_TURNS}
