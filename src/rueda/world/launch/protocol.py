"""The messages between the driver and its agents.

Driver to agent, on the agent's standard input: one JSON object per line.

Agent to driver, on the agent's standard output: first a mark, since a login shell may print a greeting before it; then
frames:

=======  ======  =============================================================
bytes    field   meaning
=======  ======  =============================================================
1        kind    ``M`` a message (JSON), ``O`` and ``E`` a worker's output
4        rank    the worker's rank
4        length  the number of bytes that follow
=======  ======  =============================================================

A frame of output holds complete lines only, so the lines of two workers are never mixed. A message ends with a newline
as well: Slurm passes on what a step writes only up to the last newline.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

MARK = b"\0rueda agent 1\n"
MESSAGE, STDOUT, STDERR = b"M", b"O", b"E"
_HEADER = struct.Struct("!cII")

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    r"""Encode a message as one line.

    >>> encode({"do": "stop"})
    b'{"do": "stop"}\n'
    """
    return json.dumps(message).encode("ascii") + b"\n"


def read_message(stream: BinaryIO) -> Message | None:
    """Block until the driver sends a message and return it, or None if the driver has exited."""
    line = stream.readline()
    return json.loads(line) if line.endswith(b"\n") else None


class Sender:
    """The agent's end: writes frames from any thread, each as a whole."""

    def __init__(self, descriptor: int) -> None:
        self._stream = os.fdopen(descriptor, "wb", closefd=False)
        self._lock = threading.Lock()
        self._write(MARK)

    def message(self, **fields: Any) -> None:
        """Send a message."""
        self.frame(MESSAGE, 0, encode(fields))

    def frame(self, kind: bytes, rank: int, data: bytes) -> None:
        """Send one frame."""
        self._write(_HEADER.pack(kind, rank, len(data)) + data)

    def _write(self, data: bytes) -> None:
        # If the driver has exited, the end of standard input tells the agent to stop.
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(data)
            self._stream.flush()


class Receiver:
    """The driver's end: turns the bytes that arrive into frames.

    >>> receiver = Receiver()
    >>> list(receiver.feed(b"Welcome!" + MARK + b"O" + bytes([0, 0, 0, 2, 0, 0, 0, 3]) + b"hi"))
    []
    >>> list(receiver.feed(b"!"))
    [(b'O', 2, b'hi!')]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._marked = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Add bytes, and yield the kind, rank and content of every frame that is now complete."""
        buffer = self._buffer
        buffer += data
        if not self._marked:
            start = buffer.find(MARK)
            if start < 0:
                return
            del buffer[: start + len(MARK)]
            self._marked = True
        position = 0
        while len(buffer) - position >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(buffer, position)
            end = position + _HEADER.size + length
            if len(buffer) < end:
                break
            yield kind, rank, bytes(buffer[position + _HEADER.size : end])
            position = end
        del buffer[:position]
