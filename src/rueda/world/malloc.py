"""Keep glibc from giving memory back to the kernel at every step.

A training step allocates and frees the same large activations again and again. By default glibc takes each
block above a threshold straight from the kernel with ``mmap`` and returns it on ``free``: the next step must fault in
every page anew, and the kernel zeroes it first. On a CNN at batch 256 that is some 70,000 page faults a step and up
to half of the time.

Two thresholds stop it (``man mallopt``):

=====================  ==========  =====================================================================
parameter              value       meaning
=====================  ==========  =====================================================================
``M_MMAP_THRESHOLD``   1 GiB       smaller blocks come from the heap, which is kept and used again
``M_TRIM_THRESHOLD``   2 GiB - 1   the heap's free end is returned only when it is longer than this
=====================  ==========  =====================================================================

The price is bounded: at most 2 GiB of freed memory at the heap's end stay with the process, beside what
fragmentation holds; blocks of 1 GiB and more are returned at once, as before. A process keeps about the peak of one
step. Set ``RUEDA_MALLOC=default`` to leave malloc alone; variables of your own (``MALLOC_*``, a preloaded
allocator) are respected.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD = 1 << 30
_TRIM_THRESHOLD = (1 << 31) - 1  # mallopt takes an int

_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": _MMAP_THRESHOLD, "MALLOC_TRIM_THRESHOLD_": _TRIM_THRESHOLD}


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether malloc is ours to tune.

    >>> wanted({}) == sys.platform.startswith("linux")
    True
    >>> wanted({"RUEDA_MALLOC": "default"}), wanted({"MALLOC_TRIM_THRESHOLD_": "0"})
    (False, False)
    """
    if not sys.platform.startswith("linux") or environ.get("RUEDA_MALLOC") == "default":
        return False
    own = any(name.startswith("MALLOC_") and name not in _VARIABLES for name in environ)
    # Variables set to our own values mean that our launcher has tuned this process already.
    foreign = any(environ.get(name, str(value)) != str(value) for name, value in _VARIABLES.items())
    return not (own or foreign or "malloc" in environ.get("LD_PRELOAD", ""))


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Give the variables that tune the malloc of a process before it starts."""
    return {name: str(value) for name, value in _VARIABLES.items()} if wanted(environ) else {}


def tune() -> bool:
    """Tune the malloc of this process; True if glibc took both values."""
    if not wanted():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl and others have none
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD) == 1 and mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD) == 1)
