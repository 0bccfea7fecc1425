"""Measure a worker's peak memory and the available memory, and predict the largest batch that fits.

On a GPU the peak is what torch allocated, and the limit is the memory of the device. On a CPU the peak is the highest
resident set size of the process, and the limit is what the machine or the container has left. A GPU raises an error
when its memory is full, but an operating system kills the process; so on a CPU the largest batch is extrapolated
linearly and never tried.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from rueda.measure.fit import fit_memory
from rueda.records.environment import memory_bytes
from rueda.world.device import is_gpu
from rueda.world.host_memory import available_bytes, cgroup_bytes, proc_bytes

HEADROOM = 0.9
"""fraction of the memory that a batch may use: the rest is for evaluation, fragmentation and other programs"""


def reset_peak(device: torch.device) -> None:
    """Reset the peak memory, if the system allows it."""
    if is_gpu(device):
        torch.get_device_module(device).reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the peak to the current value


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak memory since :func:`reset_peak`; None if the system does not tell."""
    if is_gpu(device):
        return int(torch.get_device_module(device).max_memory_allocated(device))
    if device.type == "mps":
        return None
    found = proc_bytes("self/status", "VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:  # Windows
        return None
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else 1024 * highest


def device_bytes(device: torch.device) -> int | None:
    """Return the memory of a GPU, or that of the machine or container on a CPU."""
    if is_gpu(device):
        return int(torch.get_device_module(device).get_device_properties(device).total_memory)
    return min((size for size in (memory_bytes(), cgroup_bytes("memory.max")) if size is not None), default=None)


def usable_bytes(device: torch.device) -> int | None:
    """Return how much memory this process could use in total: what it has now, and what is free."""
    if is_gpu(device):
        module = torch.get_device_module(device)
        return int(module.mem_get_info(device)[0]) + int(module.memory_reserved(device))
    mine, free_here = proc_bytes("self/status", "VmRSS"), available_bytes()
    return None if mine is None or free_here is None else mine + free_here


def largest_batch(peaks: Mapping[int, int | None], usable: int | None) -> int | None:
    """Predict the largest batch that fits from the peak memory in bytes at the measured batches.

    >>> largest_batch({8: 1080, 16: 1160, 32: 1320}, usable=10_000)
    800
    """
    known = {batch: peak for batch, peak in peaks.items() if peak is not None}
    line = fit_memory(list(known), list(known.values()))
    if line is None or usable is None:
        return None
    fixed, per_example = line
    # The extrapolation is not trusted beyond a thousand times the largest measured batch.
    most = 1024 * max(known)
    fits = int((HEADROOM * usable - fixed) / per_example + 1e-9)
    return max(1, fits) if fits <= most else None
