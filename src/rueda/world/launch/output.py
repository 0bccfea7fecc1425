"""Show what the workers write.

=================  =======================================================================================
by default         every line with its rank: ``[2] loss 0.31``; standard error to standard error
``quiet_ranks``    rank 0 alone, as it writes (no prefix, so a progress bar draws itself in place)
``folder``         one file a rank, ``rank-2.log``, both streams in the order in which they came
``horovod``        as horovodrun: ``[2]<stdout>:loss 0.31``; in ``folder`` two files a rank, ``rank.2/stdout`` and
                   ``rank.2/stderr``, beside what is shown
=================  =======================================================================================
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from rueda.errors import LaunchError
from rueda.world.launch.wire import STDERR

_TAIL_BYTES = 1 << 16
_COLOURS = (36, 33, 32, 35, 34, 31)  # cyan, yellow, green, magenta, blue, red
_TRACEBACK = b"Traceback (most recent call last):"


@dataclass(frozen=True, kw_only=True)
class Show:
    """How the workers' output is shown.

    Args:
        quiet_ranks: show rank 0 alone.
        folder: write one file a rank there (and show nothing, or rank 0 with ``quiet_ranks``).
        horovod: prefix and files as horovodrun has them.
        times: with ``horovod``, the time before each prefix.
    """

    quiet_ranks: bool = False
    folder: Path | None = None
    horovod: bool = False
    times: bool = False


def prefixed(prefix: bytes, data: bytes) -> bytes:
    r"""Put the rank before each line; a progress bar that draws itself anew becomes lines.

    >>> prefixed(b"[2] ", b"one\n\ntwo")
    b'[2] one\n[2] \n[2] two\n'
    >>> prefixed(b"[0] ", b"\r 10%\r 20%\n")
    b'[0]  10%\n[0]  20%\n'
    """
    if b"\r" in data:
        lines = data.replace(b"\r\n", b"\n").split(b"\n")
        data = b"\n".join(b"\n".join(filter(None, line.split(b"\r"))) for line in lines)
    return prefix + data.removesuffix(b"\n").replace(b"\n", b"\n" + prefix) + b"\n"


def colours(stream: TextIO) -> bool:
    """Say whether a stream is a terminal that shows colours (see no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """The driver's place for what the workers write; remembers the last words of each."""

    def __init__(self, show: Show, *, workers: int = 1) -> None:
        self._show = show
        self._digits = len(str(workers - 1))
        self._files: dict[Path, BinaryIO] = {}
        self._streams = {True: sys.stderr, False: sys.stdout}
        self._coloured = {error: colours(stream) for error, stream in self._streams.items()}
        self._tails: dict[int, bytearray] = {}
        self.traceback_seconds: dict[int, float] = {}  # rank: when its last traceback began, on the driver's clock
        if show.folder is not None:
            try:
                show.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LaunchError(
                    f"--output {show.folder}: cannot be made ({error.strerror}); name a folder that you can write"
                ) from None

    def lines(self, kind: bytes, rank: int, data: bytes) -> None:
        """Show whole lines of a worker."""
        error = kind == STDERR
        if error:
            self._remember(rank, data)
        if self._show.folder is not None:
            self._file(self._show.folder, rank, error).write(data)
        if self._show.quiet_ranks:
            if rank == 0:
                self._write(error, data)
        elif self._show.folder is None or self._show.horovod:
            self._write(error, prefixed(self._prefix(rank, error), data))

    def _prefix(self, rank: int, error: bool) -> bytes:
        if self._show.horovod:  # no colours: programs read these lines
            when = time.asctime() if self._show.times else ""
            return f"{when}[{rank}]<{'stderr' if error else 'stdout'}>:".encode()
        text, coloured = f"[{rank}]", self._coloured[error]
        return (f"\033[{_COLOURS[rank % len(_COLOURS)]}m{text}\033[0m " if coloured else f"{text} ").encode()

    def _write(self, error: bool, data: bytes) -> None:
        stream = self._streams[error]
        binary = getattr(stream, "buffer", None)
        if binary is None:  # a stream that somebody put in its place, such as io.StringIO
            stream.write(data.decode(errors="replace"))
        else:
            stream.flush()
            binary.write(data)
        stream.flush()

    def _file(self, folder: Path, rank: int, error: bool) -> BinaryIO:
        if self._show.horovod:
            path = folder / f"rank.{rank:0{self._digits}d}" / ("stderr" if error else "stdout")
        else:
            path = folder / f"rank-{rank}.log"
        if path not in self._files:
            path.parent.mkdir(exist_ok=True)
            # Unbuffered: somebody may be following the file.
            self._files[path] = open(path, "wb", buffering=0)  # noqa: SIM115
        return self._files[path]

    def _remember(self, rank: int, data: bytes) -> None:
        tail = self._tails.setdefault(rank, bytearray())
        tail += data
        del tail[:-_TAIL_BYTES]
        if _TRACEBACK in data:
            now = time.monotonic()
            # Chained exceptions come as several tracebacks in one go: the first tells when it happened.
            if now - self.traceback_seconds.get(rank, -1e9) > 1.0:
                self.traceback_seconds[rank] = now

    def last_words(self, rank: int) -> str:
        """Give the end of a worker's standard error."""
        return self._tails.get(rank, bytearray()).decode(errors="replace")

    def note(self, text: str) -> None:
        """Say something as the launcher itself, on standard error."""
        with contextlib.suppress(OSError):
            print(f"rueda: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
