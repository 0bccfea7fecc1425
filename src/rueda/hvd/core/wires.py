"""The wires of one rank: its channels to others, the bell that its own threads ring, and the waiting for either.

The thread at the wheel *reads*; the one in the background only *looks* whether there is something to read. Each has a
poller of its own, since a ``select.poll`` serves one thread at a time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Any, NamedTuple

from rueda.hvd.core.star import Channel


class Arrived(NamedTuple):
    """What came from a rank since the last look, and whether its connection has closed."""

    rank: int
    messages: list[Any]
    closed: bool


class Wires:
    """The sockets of one rank and what wakes it.

    Args:
        channels: by rank: on rank 0 to all others, elsewhere to rank 0, alone to nobody.
        longest_milliseconds: how long to wait at most where nothing happens; None: for ever.
    """

    def __init__(self, channels: dict[int, Channel], longest_milliseconds: float | None) -> None:
        self.channels = channels
        self._longest_milliseconds = longest_milliseconds
        self._ranks = {channel.fileno(): rank for rank, channel in channels.items()}  # of those that are still there
        self._work_waits = threading.Event()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._bell_number = self._bell.fileno()
        self._reader = self._new_poller()
        self._looker = self._new_poller()
        self._num_looked_at = len(self._ranks)

    def _new_poller(self) -> select.poll:
        poller = select.poll()
        poller.register(self._bell_number, select.POLLIN)
        for number in list(self._ranks):  # a copy: the thread at the wheel may forget one meanwhile
            poller.register(number, select.POLLIN)
        return poller

    # At the wheel.

    def send(self, rank: int, frame: bytes) -> None:
        """Send a frame to a rank, now or when there is room; to one that has gone, not at all."""
        channel = self.channels[rank]
        channel.send(frame)
        if channel.must_send:
            self._watch(channel)

    def read(self, milliseconds: float | None) -> list[Arrived]:
        """Wait so long (None: for ever) for something to arrive, or for the bell, and give what there is.

        It blocks in the poll, where no lock of Python is held.
        """
        arrived: list[Arrived] = []
        for number, flags in self._reader.poll(milliseconds):
            if number == self._bell_number:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
                continue
            rank = self._ranks.get(number)
            if rank is None:
                continue
            channel = self.channels[rank]
            if flags & select.POLLOUT:
                channel.flush()
                self._watch(channel)
            messages = channel.receive()
            if channel.closed:
                del self._ranks[number]
                self._reader.unregister(number)
            arrived.append(Arrived(rank, messages, channel.closed))
        return arrived

    def _watch(self, channel: Channel) -> None:
        if not channel.closed:
            self._reader.modify(channel, select.POLLIN | (select.POLLOUT if channel.must_send else 0))

    def idle_milliseconds(self) -> float | None:
        """Say how long to wait where nothing happens."""
        for channel in self.channels.values():
            if channel.must_send:  # who only looks is not told when there is room again
                return 1.0
        return self._longest_milliseconds

    # In the background.

    def look(self) -> None:
        """Wait until there is something to read or the bell rings, and leave it there; for one thread only."""
        if len(self._ranks) != self._num_looked_at:
            self._num_looked_at = len(self._ranks)
            self._looker = self._new_poller()
        self._looker.poll(self.idle_milliseconds())

    def pause(self, seconds: float) -> None:
        """Look at nothing for a while, unless the bell rings."""
        self._work_waits.clear()
        self._work_waits.wait(seconds)

    # Anywhere.

    def ring(self) -> None:
        """Wake whoever reads, looks or pauses."""
        self._work_waits.set()
        with contextlib.suppress(OSError):  # full, so it rings already; or closed
            self._rope.send(b"!")

    def close(self) -> None:
        """Close all sockets."""
        for channel in self.channels.values():
            channel.close()
        self._bell.close()
        self._rope.close()
