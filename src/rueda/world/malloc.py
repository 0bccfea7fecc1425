"""Keep glibc from returning memory to the kernel at every step, and let large tensors lie in huge pages.

A training step allocates and frees the same large activations again and again. By default glibc takes each block above
a threshold straight from the kernel with ``mmap`` and returns it on ``free``: at the next step every page causes a page
fault, and the kernel must zero the page. For a CNN at batch 256 that is some 70,000 page faults per step, which take up
to half of the time.

Two settings prevent this (``man mallopt``):

=====================  ==========  =====================================================================
parameter              value       meaning
=====================  ==========  =====================================================================
``M_MMAP_THRESHOLD``   1 GiB       smaller blocks come from the heap, which is kept and used again
``M_TRIM_THRESHOLD``   2 GiB - 1   the heap's free end is returned only when it is longer than this
=====================  ==========  =====================================================================

The cost is bounded: at most 2 GiB of freed memory at the end of the heap stay with the process, apart from
fragmentation; blocks of 1 GiB and more are returned at once, as before. A process keeps about the peak memory of a
step.

Large tensors also get huge pages of 2 MiB, where the kernel offers them to programs that ask (``madvise`` in
``/sys/kernel/mm/transparent_hugepage/enabled``, the default of most distributions): torch asks for them if
``THP_MEM_ALLOC_ENABLE=1`` is set before its first tensor is made. The processor then looks up 512 times fewer addresses
of pages. The step of a small CNN at batch 128 on each of two workers takes 80 ms of processor time instead of 87.

Malloc is not tuned if ``RUEDA_MALLOC=default`` is set, if the user has set ``MALLOC_*`` variables, or if another
allocator is preloaded.
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

_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": _MMAP_THRESHOLD, "MALLOC_TRIM_THRESHOLD_": _TRIM_THRESHOLD}


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether malloc may be tuned.

    >>> wanted({}) == sys.platform.startswith("linux")
    True
    >>> wanted({"RUEDA_MALLOC": "default"}), wanted({"MALLOC_TRIM_THRESHOLD_": "0"})
    (False, False)
    """
    if not sys.platform.startswith("linux") or environ.get("RUEDA_MALLOC") == "default":
        return False
    own = any(name.startswith("MALLOC_") and name not in _VARIABLES for name in environ)
    # Variables with these very values were set by Rueda's launcher.
    foreign = any(environ.get(name, str(value)) != str(value) for name, value in _VARIABLES.items())
    return not (own or foreign or "malloc" in environ.get("LD_PRELOAD", ""))


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that tune the malloc of a process to be started."""
    return {**{name: str(value) for name, value in _VARIABLES.items()}, **_HUGE_PAGES} if wanted(environ) else {}


def tune() -> bool:
    """Tune the malloc of this process; return whether glibc accepted both values.

    Huge pages are used only if torch has made no tensor yet.
    """
    if not wanted():
        return False
    for name, value in _HUGE_PAGES.items():
        os.environ.setdefault(name, value)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl and others have no mallopt
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD) == 1 and mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD) == 1)
