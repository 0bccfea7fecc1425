"""The memory of this machine or container, as Linux reports it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def proc_bytes(file: str, name: str) -> int | None:
    """Return the bytes in a line ``name: 12 kB`` of a file in ``/proc``; None if there is no such line."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(name + ":"):
                return 1024 * int(line.split()[1])
    return None


def cgroup_bytes(name: str) -> int | None:
    """Return the bytes in a file of the control group; None if there is no such file, or no limit in it."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/fs/cgroup", name).read_text())  # "max", no limit, is not a number
    return None


def available_bytes() -> int | None:
    """Return the free memory of the machine, within the limit of the container; None if it is not known."""
    free, limit = proc_bytes("meminfo", "MemAvailable"), cgroup_bytes("memory.max")
    used = cgroup_bytes("memory.current")
    return free if free is None or limit is None or used is None else min(free, max(0, limit - used))
