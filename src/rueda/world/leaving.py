"""End a process without tearing down its modules.

At a normal exit the interpreter destroys every module and object that was loaded. With torch that takes half a second
of processor time, a third of the total of a process that only imports torch, and it is of no use: the operating system
frees the memory anyway.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End this process as :func:`sys.exit` does, except that modules are not torn down.

    It waits for all non-daemon threads, runs the exit handlers, and flushes standard output and standard error.
    """
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the waiting
        threading._shutdown()  # type: ignore[attr-defined]  # also ends the idle threads of executors
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by the shell, as in `rueda ... >&-`
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(status)
