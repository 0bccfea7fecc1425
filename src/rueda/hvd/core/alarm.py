"""An alarm that wakes one thread after a time, unless it is cleared before.

A thread that is woken asks for Python's interpreter lock, and on a busy machine it keeps that longer than a message
takes. So whoever submits a collective does not wake the background thread: it sets this alarm, and cancels it if it
sends the collective itself soon enough. Both are one system call of a microsecond, by a timer of the kernel that
``select.poll`` can wait for (``timerfd``, which Python itself has only since 3.13).
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from contextlib import suppress
from typing import Any

_MONOTONIC = 1  # CLOCK_MONOTONIC of Linux
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Spec(ctypes.Structure):
    """``struct itimerspec``: the interval of a periodic timer, and the time until it first expires."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


def _timer_functions() -> tuple[Any, Any] | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.PyDLL(None)  # keeps the interpreter lock, which costs more to give up than the call takes
    try:
        return library.timerfd_create, library.timerfd_settime
    except AttributeError:
        return None


class Alarm:
    """An alarm for a thread that waits with ``select.poll``; without a timer of the kernel it rings at once.

    >>> import select
    >>> alarm, poll = Alarm(), select.poll()
    >>> poll.register(alarm, select.POLLIN)
    >>> alarm.set(0.001)
    >>> len(poll.poll(10_000)), alarm.clear(), poll.poll(0)
    (1, True, [])
    >>> alarm.close()
    """

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._fileno = -1
        functions = _timer_functions()
        if functions is not None:
            create, self._settime = functions
            self._fileno = create(_MONOTONIC, _NONBLOCK_CLOEXEC)
            self._spec = _Spec()
            self._never = ctypes.byref(_Spec())
        if self._fileno < 0:
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor that is readable when the alarm rings."""
        return self._fileno if self._pair is None else self._pair[0].fileno()

    def set(self, seconds: float) -> None:
        """Ring after this time."""
        if self._pair is not None:
            with suppress(OSError):  # full: it rings already; or closed
                self._pair[1].send(b"!")
        elif self._fileno >= 0:
            self._spec.seconds, self._spec.nanoseconds = divmod(max(1, int(seconds * 1e9)), 10**9)  # 0 would mean never
            self._settime(self._fileno, 0, ctypes.byref(self._spec), None)

    def clear(self) -> bool:
        """Do not ring any more, and return whether it may have rung."""
        if self._pair is not None:
            with suppress(OSError):
                return bool(self._pair[0].recv(4096))
            return False
        if self._fileno < 0:
            return False
        rang = False
        with suppress(OSError):
            rang = bool(os.read(self._fileno, 8))
        self.cancel()
        return rang

    def cancel(self) -> None:
        """Do not ring any more, unless the thread has been woken already."""
        if self._pair is None and self._fileno >= 0:
            self._settime(self._fileno, 0, self._never, None)

    def close(self) -> None:
        """Close the file descriptor."""
        if self._pair is not None:
            for end in self._pair:
                end.close()
        elif self._fileno >= 0:
            closing, self._fileno = self._fileno, -1
            os.close(closing)
