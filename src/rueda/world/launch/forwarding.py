"""Forwarding of the workers' output to the driver, in complete lines.

torch shows a worker's output by letting the worker write a file, which it polls. Here every stream is a pipe, and one
thread reads all pipes as soon as there is data. A line is forwarded once it is complete, so the lines of different
workers are never mixed, and no line waits for the next poll.
"""

from __future__ import annotations

import os
import selectors
import threading
from dataclasses import dataclass, field

from rueda.world.launch.protocol import Sender

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 24  # a longer line is forwarded in pieces, instead of being kept in memory


@dataclass
class _Stream:
    kind: bytes
    rank: int
    pending: bytearray = field(default_factory=bytearray)  # received, but not forwarded


def complete(data: bytearray) -> int:
    r"""Count the bytes that form complete lines; ``\r``, with which a progress bar redraws itself, ends a line too.

    >>> complete(bytearray(b"one\ntwo")), complete(bytearray(b"10%\r20%")), complete(bytearray(b"dos\r"))
    (4, 4, 0)
    """
    end = data.rfind(b"\n") + 1
    # A \r at the very end may be the first half of \r\n.
    return max(end, data.rfind(b"\r", end, max(0, len(data) - 1)) + 1)


class OutputForwarder:
    """Reads every worker's pipes in one thread and sends complete lines to the driver."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._num_open: dict[int, int] = {}  # by worker: its streams that are open
        self._selector = selectors.DefaultSelector()
        wake, self._waker = os.pipe()
        self._selector.register(wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="forwarding", daemon=True)

    def pipe(self, kind: bytes, rank: int) -> int:
        """Open a pipe for a stream of a worker and return its write end."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._num_open[rank] = self._num_open.get(rank, 0) + 1
        self._selector.register(reading, selectors.EVENT_READ, _Stream(kind, rank))
        return writing

    def is_drained(self, rank: int) -> bool:
        """Return whether everything that a worker wrote has been forwarded, and nobody can write more."""
        return not self._num_open.get(rank)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Forward what the workers, which have ended, left in the pipes, and end the thread."""
        if self._thread.ident is not None:
            os.write(self._waker, b"x")
            self._thread.join()

    def _run(self) -> None:
        finishing = False
        while not finishing:
            for key, _ in self._selector.select():
                if key.data is None:
                    finishing = True
                else:
                    self._read(key.fd, key.data)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                while self._read(key.fd, key.data):
                    pass
                self._forward(key.data, len(key.data.pending))

    def _read(self, descriptor: int, stream: _Stream) -> bool:
        """Read once and forward the complete lines; return whether there may be more to read now."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        stream.pending += data
        end = complete(stream.pending)
        if not data or len(stream.pending) - end > _LONGEST_LINE:
            end = len(stream.pending)
        self._forward(stream, end)
        if not data:  # every writer has closed its end
            self._selector.unregister(descriptor)
            os.close(descriptor)
            self._num_open[stream.rank] -= 1
        return bool(data)

    def _forward(self, stream: _Stream, end: int) -> None:
        if end:
            self._sender.frame(stream.kind, stream.rank, bytes(stream.pending[:end]))
            del stream.pending[:end]
