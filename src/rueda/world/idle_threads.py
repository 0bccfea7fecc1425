"""Wait until Gloo's threads have released their tensors, before Python shuts down.

A Gloo thread wakes the caller of a collective before it releases that collective's tensors. If it drops the last
reference to a tensor, it needs the GIL; if Python is shutting down at that moment, it terminates the thread inside C++
code, which aborts the process: ``terminate called without an active exception``. Then a successful training ends with
SIGABRT: rarely after a loop with DistributedDataParallel, three times in nineteen starts of a short script with the
Trainer of Hugging Face, whose last collective comes just before its end.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from functools import cache
from pathlib import Path

_TASKS = Path("/proc/self/task")


def wait_for_idle_threads(seconds: float = 1.0) -> bool:
    """Block until all other threads of this process were seen asleep twice in a row; return False after ``seconds``.

    On a system without ``/proc`` it returns True within milliseconds.
    """
    deadline = time.monotonic() + seconds
    quiet = 0
    while quiet < 2:
        quiet = 0 if _others_run() else quiet + 1
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)  # releases the GIL, for which a thread may be waiting
    return True


@cache
def wait_at_exit() -> None:
    """Wait for these threads when this process ends, whoever has made its process group; registered only once."""
    atexit.register(wait_for_idle_threads)


def _others_run() -> bool:
    own = str(threading.get_native_id())
    try:
        tasks = [name for name in os.listdir(_TASKS) if name != own]
    except OSError:
        return False
    return any(_state(name) == "R" for name in tasks)


def _state(task: str) -> str:
    try:
        # The thread's name, in parentheses, may contain any character; the state follows it.
        return (_TASKS / task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""  # it has ended
