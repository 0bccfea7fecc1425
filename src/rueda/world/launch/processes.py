"""Leave no process behind.

Every worker leads a session of its own, so one signal reaches it and its children. What leaves that session (a daemon,
a child of a child that called ``setsid``) is adopted by the agent, which declares itself their reaper
(``PR_SET_CHILD_SUBREAPER``), and is found as its descendant.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (Linux)."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that ``pid`` leads, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def signal_tree(leaders: Iterable[int], number: int) -> None:
    """Signal the groups of the workers, and those of this process's descendants that have left them; each once."""
    groups = set(leaders)
    for pid in groups:
        signal_group(pid, number)
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) not in groups:
                os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """List the living processes below ``pid`` (Linux; elsewhere none are seen)."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command name stands in brackets and may hold anything, brackets too.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    level = children.get(pid, [])
    while level:
        found += level
        level = [child for parent in level for child in children.get(parent, [])]
    return found


def reap_orphans(workers: Iterable[int]) -> None:
    """Collect adopted processes that have ended; the workers' own ends are somebody else's to collect."""
    kept = set(workers)
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in kept:
                return
            os.waitpid(ended.si_pid, 0)


def sweep(groups: Iterable[int], *, seconds: float) -> None:
    """End what the workers left: SIGTERM, and SIGKILL to what is still there ``seconds`` later.

    The helpers of :mod:`multiprocessing` ignore SIGTERM and end by themselves when their owner has gone.
    """
    if not os.path.exists("/proc/self/stat"):
        for pid in groups:
            signal_group(pid, signal.SIGKILL)
        return
    deadline = time.monotonic() + seconds
    for number in (signal.SIGTERM, signal.SIGKILL):
        # One by one: the workers are gone, and the number of a group that is gone may be somebody else's by now.
        signal_tree((), number)
        pause = 0.005
        while descendants(os.getpid()):
            now = time.monotonic()
            if now > deadline + (0 if number == signal.SIGTERM else 5):  # after SIGKILL: stuck in the kernel
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        else:
            return
