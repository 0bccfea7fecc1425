"""Before Python shuts down, the threads of Gloo must have released their tensors.

A thread of Gloo wakes the caller of a collective before it lets go of that collective's tensors. If the last reference
is dropped there, it needs Python's lock; and if Python is shutting down by then, the thread is ended in the middle of
C++ code, which aborts the process: ``terminate called without an active exception``. It takes a busy machine to lose
this race (seen once in hundreds of starts), but then a training that succeeded ends with SIGABRT.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_TASKS = Path("/proc/self/task")


def wait_for_idle_threads(seconds: float = 1.0) -> bool:
    """Blocks until every other thread of this process sleeps, seen twice in a row; returns False after ``seconds``.

    Where the system does not tell (no ``/proc``), it returns at once.
    """
    deadline = time.monotonic() + seconds
    quiet = 0
    while quiet < 2:
        quiet = 0 if _others_run() else quiet + 1
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)  # lets go of Python's lock, which a thread may be waiting for
    return True


def _others_run() -> bool:
    own = str(threading.get_native_id())
    try:
        tasks = [name for name in os.listdir(_TASKS) if name != own]
    except OSError:
        return False
    return any(_state(name) == "R" for name in tasks)


def _state(task: str) -> str:
    try:
        # The name in brackets may hold anything: what follows its end is plain.
        return (_TASKS / task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""  # it has ended
