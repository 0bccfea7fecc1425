"""Writes that wait for the reader where the descriptor itself does not wait.

Another process that shares the terminal or the pipe may have made it non-blocking (``O_NONBLOCK`` belongs to the open
file, not to the process). A write then fails with ``EAGAIN`` when the reader is slow, and Python loses the rest of the
line. Making it blocking again would change it for the other process; so the write waits and tries again.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TextIO, cast


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write all bytes to a descriptor, blocking or not."""
    left = memoryview(data).cast("B")
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


class _PatientFile(io.FileIO):
    """The raw layer of a stream whose writes wait."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        write_all(self.fileno(), data)
        return len(data)


def prepare_standard_streams() -> None:
    """Open ``/dev/null`` in place of closed standard descriptors, and let non-blocking output wait for its reader.

    Otherwise the next file or socket that the process opens would get the number of a closed standard descriptor, and
    a library that prints an error would write into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stderr is None:  # Python's word for a closed one; progress and libraries write to it without asking
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is not None and not os.get_blocking(stream.fileno()):
            old = cast(io.TextIOWrapper, stream)
            patient = io.BufferedWriter(cast(io.RawIOBase, _PatientFile(old.fileno(), "wb", closefd=False)))
            setattr(sys, name, io.TextIOWrapper(patient, old.encoding, old.errors, line_buffering=True))
