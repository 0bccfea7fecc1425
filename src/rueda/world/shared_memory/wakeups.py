"""Wakeups between the ranks of one host: a rank that waits sleeps in the kernel, instead of looking again and again.

A rank that is about to sleep says so by a counter of its segment. Another rank that has set one of its own counters
then sends it an empty datagram (a Unix socket with an abstract name, which vanishes with the process). If this fails,
or a wakeup is missed because both look at the same instant, the rank wakes by itself after some milliseconds.
"""

from __future__ import annotations

import contextlib
import socket
import weakref

from rueda.world.shared_memory.segment import NUM_COUNTERS, SLEEPS, Segment


class Wakeups:
    """The wakeups of one rank.

    Args:
        segment: the segment of the ranks of this host.
    """

    def __init__(self, segment: Segment) -> None:
        self._values = segment.counters
        self._own = segment.rank * NUM_COUNTERS + SLEEPS
        name = f"\0rueda-{segment.nonce}-"
        others = [rank for rank in range(segment.size) if rank != segment.rank]
        self._others = [(rank * NUM_COUNTERS + SLEEPS, f"{name}{rank}") for rank in others]
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        weakref.finalize(self, self.socket.close)
        self.socket.setblocking(False)
        self.works = True
        """whether this rank can be woken"""
        try:
            self.socket.bind(f"{name}{segment.rank}")
        except OSError:
            self.works = False

    def wake_others(self) -> None:
        """Wake those ranks that sleep; called after a counter was set."""
        for index, address in self._others:
            if self._values[index]:
                with contextlib.suppress(OSError):  # it is gone, or has many wakeups
                    self.socket.sendto(b"", address)

    def begin_sleep(self) -> None:
        """Ask to be woken; afterwards this rank must look once more whether there is something to sleep for."""
        self._values[self._own] = 1

    def end_sleep(self) -> None:
        """Ask no more, and forget the wakeups that came."""
        self._values[self._own] = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.socket.recv(1)
