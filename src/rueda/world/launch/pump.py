"""Carry what the workers write, in whole lines.

torch's own way of showing a worker's output is to let it write a file and to poll that file. Here each stream is a
pipe that one thread reads as soon as there is something; a line goes on when it is complete, so lines of
different workers are never mixed, and nothing waits for a poll.
"""

from __future__ import annotations

import os
import selectors
import threading
from dataclasses import dataclass, field

from rueda.world.launch.wire import Sender

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 24  # a stream that never ends a line is cut here, rather than kept in memory for ever


@dataclass
class _Stream:
    kind: bytes
    rank: int
    rest: bytearray = field(default_factory=bytearray)


def complete(data: bytearray) -> int:
    r"""Count the bytes that form whole lines; ``\r``, by which a progress bar draws itself anew, ends one too.

    >>> complete(bytearray(b"one\ntwo")), complete(bytearray(b"10%\r20%")), complete(bytearray(b"dos\r"))
    (4, 4, 0)
    """
    end = data.rfind(b"\n") + 1
    # A last \r may be the first half of \r\n.
    return max(end, data.rfind(b"\r", end, len(data) - 1) + 1) if data else 0


class Pump:
    """Reads every worker's pipes in one thread and sends whole lines to the driver."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)

    def pipe(self, kind: bytes, rank: int) -> int:
        """Open a pipe for a stream of a worker and give the end to write to."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._selector.register(reading, selectors.EVENT_READ, _Stream(kind, rank))
        return writing

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self) -> None:
        """Read what the dead left in the pipes, send it, and end."""
        if self._thread.ident is not None:
            os.write(self._waker, b"x")
            self._thread.join()

    def _run(self) -> None:
        while True:
            ready = self._selector.select()
            for key, _ in ready:
                if isinstance(key.data, _Stream):
                    self._read(key.fd, key.data)
            if any(key.fd == self._wake for key, _ in ready):
                break
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Stream):
                while self._read(key.fd, key.data):
                    pass
                if key.data.rest:
                    self._sender.frame(key.data.kind, key.data.rank, bytes(key.data.rest))

    def _read(self, descriptor: int, stream: _Stream) -> bool:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:  # every writer has closed its end
            self._selector.unregister(descriptor)
            if stream.rest:
                self._sender.frame(stream.kind, stream.rank, bytes(stream.rest))
            return False
        stream.rest += data
        end = complete(stream.rest)
        if len(stream.rest) - end > _LONGEST_LINE:
            end = len(stream.rest)
        if end:
            self._sender.frame(stream.kind, stream.rank, bytes(stream.rest[:end]))
            del stream.rest[:end]
        return True
