"""Python stacks of this process, and of another one on this host; the state of a process.

A thread of the watcher reads the stacks of the other threads, whatever they do in C++, if they have released Python's
global interpreter lock, as torch does while it waits. A process that holds the lock does not answer at all; it gets a
signal, whose handler (:mod:`faulthandler`) writes the stacks without the lock into a file in memory, which another
process reads through ``/proc``. From a process that is stopped no stack can be had.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback

_MOST_LINES = 60
ENDED_OR_STOPPED = ("T", "t", "Z", "")
_STATES = {
    "T": "its process is stopped (SIGSTOP or Ctrl-Z), so no stack can be had",
    "t": "its process is stopped by a debugger, so no stack can be had",
    "D": "its process waits in the kernel, as for a disk that does not answer",
    "Z": "its process has ended",
    "": "its process has ended",
}


def own_stacks() -> str:
    """Return the Python stacks of this process: the main thread's, and those of the script's other threads."""
    frames = sys._current_frames()
    lines: list[str] = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is None or thread.name.startswith("rueda"):
            continue
        if thread is not threading.main_thread():
            if thread.daemon:
                continue
            lines.append(f"thread {thread.name}:")
        lines += "".join(traceback.format_stack(frame)).splitlines()
    return "\n".join(lines[-_MOST_LINES:])


def own_place() -> str:
    """Return the file, line and function at which the main thread is, outside of installed packages if possible."""
    stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
    own = [line for line in stack if "site-packages" not in line.filename and not line.filename.startswith("<")]
    last = (own or stack)[-1]
    return f"{last.filename}, line {last.lineno}, in {last.name}"


def offer_stacks() -> int | None:
    """Let a signal write the stacks of this process into a file in memory; return its descriptor (Linux)."""
    if not (hasattr(os, "memfd_create") and hasattr(faulthandler, "register")):
        return None
    descriptor = os.memfd_create("rueda-stacks")
    faulthandler.register(_signal(), descriptor, all_threads=True, chain=False)
    return descriptor


def withdraw_stacks(descriptor: int | None) -> None:
    """Undo :func:`offer_stacks`."""
    if descriptor is not None:
        faulthandler.unregister(_signal())
        os.close(descriptor)


def silent_process(pid: int, descriptor: int | None) -> tuple[str, str]:
    """Return why a process on this host does not answer, and its stacks if they can be had.

    Args:
        pid: the process.
        descriptor: what :func:`offer_stacks` returned there.
    """
    why = _STATES.get(process_state(pid))
    if why is not None:
        return why, ""
    why = "its process runs, but holds Python's interpreter lock or is overloaded"
    if descriptor is None:
        return why, ""
    try:
        with open(f"/proc/{pid}/fd/{descriptor}", "rb") as file:
            file.seek(0, os.SEEK_END)
            os.kill(pid, _signal())
            for _ in range(20):
                time.sleep(0.05)
                if text := file.read().decode(errors="replace"):
                    return why, text.rpartition("\n\n")[2]  # the last one is that of the main thread
    except OSError:
        pass
    return why, ""


def process_state(pid: int) -> str:
    """Return the state of a process as one letter (``R`` runs, ``S`` sleeps, ``T`` is stopped); "" if there is none.

    >>> process_state(os.getpid())
    'R'
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]  # the name, in parentheses, may contain any character
    except (OSError, IndexError):
        return ""


def _signal() -> int:
    return int(signal.SIGRTMIN) + 11
