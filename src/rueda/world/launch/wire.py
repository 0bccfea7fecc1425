"""How driver and agents talk.

Driver to agent, on the agent's standard input: packets, each ten digits of length and that many bytes of JSON.

Agent to driver, on its standard output: first a mark, since a login shell may print a greeting before it; then frames:

=======  ======  =============================================================
bytes    field   meaning
=======  ======  =============================================================
1        kind    ``M`` a message (JSON), ``O`` and ``E`` lines of a worker
4        rank    of the worker
4        length  of what follows
=======  ======  =============================================================

A frame of lines holds whole lines only, so what two workers write can never be mixed within a line.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

MARK = b"\0rueda agent 1\n"
MESSAGE, STDOUT, STDERR = b"M", b"O", b"E"
_HEADER = struct.Struct("!cII")
_DIGITS = 10

Message = dict[str, Any]


def packet(message: Message) -> bytes:
    """Encode what the driver sends.

    >>> packet({"do": "stop"})
    b'0000000014{"do": "stop"}'
    """
    body = json.dumps(message).encode("ascii")
    return b"%0*d" % (_DIGITS, len(body)) + body


def read_packet(descriptor: int) -> Message | None:
    """Read one packet; None when the driver has gone. Reads no byte too many: a new program may take over."""
    head = _read_exactly(descriptor, _DIGITS)
    body = _read_exactly(descriptor, int(head)) if head else None
    return json.loads(body) if body else None


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = os.read(descriptor, count - len(data))
        if not more:
            return None
        data += more
    return data


class Sender:
    """The agent's end: frames from any thread, each written whole."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self.broken = False
        self._write(MARK)

    def message(self, **fields: Any) -> None:
        """Send a message."""
        self.frame(MESSAGE, 0, json.dumps(fields).encode("ascii"))

    def frame(self, kind: bytes, rank: int, data: bytes) -> None:
        """Send bytes of one kind."""
        self._write(_HEADER.pack(kind, rank, len(data)) + data)

    def _write(self, data: bytes) -> None:
        with self._lock:
            view = memoryview(data)
            while view and not self.broken:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except OSError:  # the driver is gone: its end of standard input tells the agent to stop
                    self.broken = True


class Receiver:
    """The driver's end: bytes in, frames out.

    >>> receiver = Receiver()
    >>> list(receiver.feed(b"Welcome!" + MARK + b"O" + bytes([0, 0, 0, 2, 0, 0, 0, 3]) + b"hi"))
    []
    >>> list(receiver.feed(b"!"))
    [(b'O', 2, b'hi!')]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.marked = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Take bytes and give the frames that are complete."""
        buffer = self._buffer
        buffer += data
        if not self.marked:
            start = buffer.find(MARK)
            if start < 0:
                return
            del buffer[: start + len(MARK)]
            self.marked = True
        position = 0
        while len(buffer) - position >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(buffer, position)
            end = position + _HEADER.size + length
            if len(buffer) < end:
                break
            yield kind, rank, bytes(buffer[position + _HEADER.size : end])
            position = end
        del buffer[:position]
