"""The control channels of one rank, and the wakeup socket by which its own threads interrupt a wait.

The thread that holds the progress lock *receives* messages. The background thread only *waits until a channel is
readable* and leaves the messages there. Each uses its own ``select.poll`` object, which serves one thread at a time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Any, NamedTuple

from rueda.hvd.core.channel import Channel


class Received(NamedTuple):
    """The messages that have arrived from a rank, and whether its connection has closed."""

    rank: int
    messages: list[Any]
    closed: bool


class ControlChannels:
    """The channels of one rank to the others.

    Args:
        channels: the channels by rank: on rank 0 to all others, on other ranks to rank 0.
        idle_limit: the longest time in milliseconds to wait when nothing happens; None for no limit.
    """

    def __init__(self, channels: dict[int, Channel], idle_limit: float | None) -> None:
        self.channels = channels
        self._idle_limit = idle_limit
        self._ranks = {channel.fileno(): rank for rank, channel in channels.items()}  # of open connections
        self._woken = threading.Event()
        self._wakeup_receiver, self._wakeup_sender = socket.socketpair()
        self._wakeup_receiver.setblocking(False)
        self._wakeup_sender.setblocking(False)
        self._wakeup_fileno = self._wakeup_receiver.fileno()
        self._receive_poll = self._new_poll()
        self._background_poll = self._new_poll()
        self._num_background = len(self._ranks)

    def _new_poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wakeup_fileno, select.POLLIN)
        for fileno in list(self._ranks):  # a copy, since the receiving thread may remove one
            poll.register(fileno, select.POLLIN)
        return poll

    # For the thread that holds the progress lock.

    def send(self, rank: int, frame: bytes) -> None:
        """Send a frame to a rank, now or when its socket has room; do nothing if its connection has closed."""
        channel = self.channels[rank]
        channel.send(frame)
        if channel.must_send:
            self._update_events(channel)

    def receive(self, milliseconds: float | None) -> list[Received]:
        """Wait for messages or :meth:`wake`, up to ``milliseconds`` (None: no limit), and return what has arrived."""
        received = []
        for fileno, events in self._receive_poll.poll(milliseconds):
            if fileno == self._wakeup_fileno:
                with contextlib.suppress(BlockingIOError):
                    self._wakeup_receiver.recv(4096)
                continue
            rank = self._ranks.get(fileno)
            if rank is None:
                continue
            channel = self.channels[rank]
            if events & select.POLLOUT:
                channel.flush()
                self._update_events(channel)
            messages = channel.receive()
            if channel.closed:
                del self._ranks[fileno]
                self._receive_poll.unregister(fileno)
            received.append(Received(rank, messages, channel.closed))
        return received

    def _update_events(self, channel: Channel) -> None:
        if not channel.closed:
            self._receive_poll.modify(channel, select.POLLIN | (select.POLLOUT if channel.must_send else 0))

    def idle_milliseconds(self) -> float | None:
        """Return how long to wait at most when nothing happens."""
        for channel in self.channels.values():
            if channel.must_send:  # the background poll does not report that a socket has room again
                return 1.0
        return self._idle_limit

    # For the background thread.

    def wait_until_readable(self) -> None:
        """Wait until a channel can be read or :meth:`wake` was called, and read nothing."""
        if len(self._ranks) != self._num_background:
            self._num_background = len(self._ranks)
            self._background_poll = self._new_poll()
        self._background_poll.poll(self.idle_milliseconds())

    def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or :meth:`wake` is called, whatever arrives."""
        self._woken.clear()
        self._woken.wait(seconds)

    # For any thread.

    def wake(self) -> None:
        """Interrupt the threads that wait in a method of this object."""
        self._woken.set()
        with contextlib.suppress(OSError):  # full: a wakeup is pending already; or closed
            self._wakeup_sender.send(b"!")

    def close(self) -> None:
        """Close all sockets."""
        for channel in self.channels.values():
            channel.close()
        self._wakeup_receiver.close()
        self._wakeup_sender.close()
