"""End every process that the workers started.

Every worker leads its own session, so one signal to the process group reaches it and its children. A process that has
left that session (a daemon, or a grandchild that called ``setsid``) is adopted by the agent, which declares itself the
reaper of its descendants (``PR_SET_CHILD_SUBREAPER``), and is found as a descendant of the agent.
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
_PR_SET_PDEATHSIG = 1
_USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (Linux)."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Let this process be killed when the one that started it ends in any way (Linux); for ``preexec_fn``."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group that ``pid`` leads, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def signal_tree(leaders: Iterable[int], number: int) -> None:
    """Send a signal once to each worker's process group and to every other descendant of this process."""
    groups = set(leaders)
    for pid in groups:
        signal_group(pid, number)
    for pid in descendants(os.getpid()):
        if _group(pid) not in groups:
            _signal_one(pid, number)


def catches(pid: int, number: int) -> bool | None:
    """Return whether a process handles a signal, instead of ignoring it or dying of it; None where that is unknown."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except FileNotFoundError:
        return None if not os.path.exists("/proc/self/status") else False
    except OSError:
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def ask(leaders: Iterable[int], number: int) -> bool:
    """Ask each worker by a signal to save or to stop; return whether any process got it.

    A worker that handles the signal gets it alone: it decides about its own children, of which some, such as torch's
    loader processes, would die of it while the worker still needs them to finish its step. Otherwise all its processes
    get it. SIGUSR1 and SIGUSR2 are sent only to processes that handle them, since others would die; a worker without
    such a process gets SIGTERM in place of SIGUSR2.
    """
    asked = False
    for leader in leaders:
        caught = catches(leader, number)
        if caught or (caught is None and number in _USER_SIGNALS):
            _signal_one(leader, number)
        elif number not in _USER_SIGNALS:
            signal_worker(leader, number)
        elif willing := [pid for pid in descendants(leader) if catches(pid, number)]:
            for pid in willing:
                _signal_one(pid, number)
        elif number == signal.SIGUSR2:
            signal_worker(leader, signal.SIGTERM)
        else:
            continue
        asked = True
    return asked


def signal_worker(leader: int, number: int) -> None:
    """Send a signal to a worker's process group, and to those of its descendants that have left the group."""
    others = [pid for pid in descendants(leader) if _group(pid) != leader]
    signal_group(leader, number)
    for pid in others:
        _signal_one(pid, number)


def _signal_one(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _group(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return None


def descendants(pid: int) -> list[int]:
    """Return the living descendants of the process ``pid`` (on Linux; elsewhere an empty list)."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
            # The command name is in brackets and may itself contain brackets.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    level = children.get(pid, [])
    while level:
        found += level
        level = [child for parent in level for child in children.get(parent, [])]
    return found


def reap_orphans(workers: Iterable[int]) -> None:
    """Collect the exit status of adopted processes that have ended, but not of the workers: torch collects those."""
    kept = set(workers)
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in kept:
                return
            os.waitpid(ended.si_pid, 0)


def sweep(groups: Iterable[int], *, seconds: float) -> None:
    """End the processes that the workers left: SIGTERM, and SIGKILL to those that still run ``seconds`` later.

    The helper processes of :mod:`multiprocessing` ignore SIGTERM and end on their own after their parent.
    """
    if not os.path.exists("/proc/self/stat"):
        for pid in groups:
            signal_group(pid, signal.SIGKILL)
        return
    deadline = time.monotonic() + seconds
    for number, until in ((signal.SIGTERM, deadline), (signal.SIGKILL, deadline + 5)):
        # One by one: the workers have ended, so another process may have got the number of a worker's group.
        signal_tree((), number)
        pause = 0.005
        while descendants(os.getpid()):
            if time.monotonic() > until:  # after SIGKILL: the process is stuck in the kernel
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        else:
            return
