"""Peak memory of a worker, how much there is, and which batch would still fit.

On a GPU: what torch allocated, against what the device has. On a CPU: the process's resident set at its highest,
against what the machine (or the container) could still give. A GPU may be filled until it refuses; a CPU machine kills
instead, so there the largest batch is predicted by a line and never tried.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import torch

from rueda.measure.fit import fit_memory
from rueda.records.profile import StepTime

HEADROOM = 0.9
"""share of the memory that a batch may take: the rest is for evaluation, fragments and the other programs"""


def reset_peak(device: torch.device) -> None:
    """Forget the highest value so far, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the high-water mark to the present value


def peak_bytes(device: torch.device) -> int | None:
    """Give the highest value since :func:`reset_peak`; None where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return None
    found = _proc("self/status", "VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:  # Windows
        return None
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else 1024 * highest


def device_bytes(device: torch.device) -> int | None:
    """Give the memory of a GPU, or of the machine or container on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limit = _cgroup("memory.max")
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return limit
    return whole if limit is None else min(whole, limit)


def usable_bytes(device: torch.device) -> int | None:
    """Give what this process could take in all: what it has, and what is free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device)
    mine, free_here = _proc("self/status", "VmRSS"), _available()
    return None if mine is None or free_here is None else mine + free_here


def largest_batch(steps: list[StepTime], usable: int | None) -> int | None:
    """Predict the largest batch that fits, from the peaks at the measured ones.

    >>> def step(batch: int, peak: int) -> StepTime:
    ...     return StepTime(batch=batch, seconds=1.0, spread=0.0, repeats=1, data=0.0, forward=0.0, backward=0.0,
    ...                     optimizer=0.0, peak_memory_bytes=peak)
    >>> largest_batch([step(8, 1080), step(16, 1160), step(32, 1320)], usable=10_000)
    800
    """
    known = [(step.batch, step.peak_memory_bytes) for step in steps if step.peak_memory_bytes is not None]
    line = fit_memory([batch for batch, _ in known], [peak for _, peak in known])
    if line is None or usable is None:
        return None
    fixed, per_example = line
    # The line is as good as its points: it says nothing of a batch a thousand times as large.
    most = 1024 * max(batch for batch, _ in known)
    fits = int((HEADROOM * usable - fixed) / per_example + 1e-9)
    return max(1, fits) if fits <= most else None


def _proc(file: str, name: str) -> int | None:
    """Give the bytes that a line ``name: 12 kB`` of a file in ``/proc`` says."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(name + ":"):
                return 1024 * int(line.split()[1])
    return None


def _available() -> int | None:
    """Give what the machine can still give, within the container's limit."""
    free, limit, used = _proc("meminfo", "MemAvailable"), _cgroup("memory.max"), _cgroup("memory.current")
    return free if free is None or limit is None or used is None else min(free, max(0, limit - used))


def _cgroup(name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/fs/cgroup", name).read_text())  # "max" is no number: no limit
    return None
