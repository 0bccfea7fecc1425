"""Sleeping until another process changes a number in memory that both have mapped: Linux's ``futex``.

A rank that sleeps so is made ready in the very moment in which the other has stored the number and says so, and the
scheduler lets it run before programs that have had their share. A sleep of fixed length ends too early or too late, and
a loop that looks again and again uses up the share that the rank needs afterwards.

The kernel compares the number with the expected one under a lock before it lets the caller sleep, so a change between
the caller's own look and its sleep is not missed.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_CALL_NUMBERS = {"x86_64": 202, "aarch64": 98}  # of futex
_WAIT, _WAKE = 0, 1  # among processes: without FUTEX_PRIVATE_FLAG
_EVERYBODY = 1 << 30


class _Time(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """Sleeps on the numbers of a memory, and wakes those who sleep on them.

    Args:
        numbers: the memory, of 8-byte numbers. A futex has 4 bytes: the lower half, which lies first.
        seconds: after which a sleep ends at the latest.

    >>> numbers = memoryview(bytearray(16)).cast("q")
    >>> futex = Futex(numbers, 0.001)
    >>> futex.sleep(1, 0)  # nobody wakes it
    >>> futex.wake(1)
    0
    """

    def __init__(self, numbers: memoryview, seconds: float) -> None:
        self._number = _CALL_NUMBERS[platform.machine()]
        self._first = ctypes.c_char.from_buffer(numbers)  # keeps the memory mapped
        self._address = ctypes.addressof(self._first)
        self._seconds = _Time(int(seconds), int(seconds % 1 * 1e9))
        self._limit = ctypes.byref(self._seconds)
        arguments = (
            ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint
        )  # fmt: skip
        # One lets other threads have the interpreter lock meanwhile, the other takes less time than giving it up.
        self._sleep, self._wake = ctypes.CDLL(None).syscall, ctypes.PyDLL(None).syscall
        for function in (self._sleep, self._wake):
            function.argtypes, function.restype = arguments, ctypes.c_long

    def sleep(self, index: int, value: int) -> None:
        """Sleep until somebody wakes this number; not at all if it is not ``value`` any more."""
        self._sleep(self._number, self._address + 8 * index, _WAIT, value & 0xFFFFFFFF, self._limit, None, 0)

    def wake(self, index: int) -> int:
        """Wake all who sleep on a number; return how many these are, or -1 if the system refuses."""
        woken: int = self._wake(self._number, self._address + 8 * index, _WAKE, _EVERYBODY, None, None, 0)
        return woken


def futex_of(numbers: memoryview, seconds: float) -> Futex | None:
    """Return a :class:`Futex` where the system has one: on Linux, on the processors whose call is known here."""
    if not sys.platform.startswith("linux") or platform.machine() not in _CALL_NUMBERS:
        return None
    if sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    futex = Futex(numbers, seconds)
    return futex if futex.wake(0) >= 0 else None  # a sandbox may refuse it
