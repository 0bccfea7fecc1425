"""The control channels of one rank, and the wakeup sockets by which its own threads interrupt a wait.

The thread that holds the progress lock *receives* messages. The background thread only *waits until a channel is
readable* and leaves the messages there. Each uses its own ``select.poll`` object, which serves one thread at a time,
and its own wakeup socket. The background thread is also woken by an alarm (:mod:`rueda.hvd.core.alarm`), which is set
when something is submitted and cancelled when another thread sends it.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Any, NamedTuple

from rueda.hvd.core.alarm import Alarm
from rueda.hvd.core.channel import Channel


class Received(NamedTuple):
    """The messages that have arrived from a rank, and whether its connection has closed."""

    rank: int
    messages: list[Any]
    closed: bool


class Wakeup:
    """A socket by which any thread wakes the one that waits for it."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._fileno = self._receiver.fileno()

    def fileno(self) -> int:
        """Return the file descriptor that is readable after :meth:`send`."""
        return self._fileno

    def send(self) -> None:
        """Wake the thread."""
        with contextlib.suppress(OSError):  # full: a wakeup is pending already; or closed
            self._sender.send(b"!")

    def consume(self) -> None:
        """Forget all wakeups."""
        with contextlib.suppress(OSError):  # there is none; or closed
            self._receiver.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self._receiver.close()
        self._sender.close()


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
        self.alarm = Alarm()
        """wakes the background thread when submissions have been collected long enough"""
        self._wakeup, self._background_wakeup = Wakeup(), Wakeup()
        self._receive_poll = self._new_poll(self._wakeup)
        self._background_poll = self._new_poll(self._background_wakeup, self.alarm)
        self._num_background = len(self._ranks)
        self._sleep_poll = select.poll()
        for each in (self._background_wakeup, self.alarm):
            self._sleep_poll.register(each, select.POLLIN)

    def _new_poll(self, *wakeups: Wakeup | Alarm) -> select.poll:
        poll = select.poll()
        # From a copy, since the receiving thread may remove one.
        for each in (*wakeups, *list(self._ranks)):
            poll.register(each, select.POLLIN)
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
            if fileno == self._wakeup.fileno():
                self._wakeup.consume()
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

    def wait_until_readable(self) -> bool:
        """Wait until a channel can be read or this thread is woken, and read nothing; return whether the alarm rang."""
        if len(self._ranks) != self._num_background:
            self._num_background = len(self._ranks)
            self._background_poll = self._new_poll(self._background_wakeup, self.alarm)
        return self._was_woken(self._background_poll.poll(self.idle_milliseconds()))

    def sleep(self, seconds: float) -> bool:
        """Sleep until the time is over or this thread is woken, whatever arrives; return whether the alarm rang."""
        return self._was_woken(self._sleep_poll.poll(1000 * seconds))

    def _was_woken(self, events: list[tuple[int, int]]) -> bool:
        rang = False
        for fileno, _ in events:
            if fileno == self._background_wakeup.fileno():
                self._background_wakeup.consume()
            elif fileno == self.alarm.fileno():
                rang = self.alarm.clear()
        return rang

    # For any thread.

    def wake(self) -> None:
        """Interrupt the threads that wait in a method of this object."""
        self._background_wakeup.send()
        self._wakeup.send()

    def wake_receiver(self) -> None:
        """Interrupt :meth:`receive` alone: the thread that is in it sends what was submitted meanwhile."""
        self._wakeup.send()

    def close(self) -> None:
        """Close all sockets."""
        for channel in self.channels.values():
            channel.close()
        for each in (self._wakeup, self._background_wakeup, self.alarm):
            each.close()
