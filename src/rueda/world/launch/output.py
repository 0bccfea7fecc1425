"""Show what the workers write.

=================  =======================================================================================
by default         every line with its rank: ``[2] loss 0.31``; standard error to standard error
``quiet_ranks``    rank 0 alone, as it writes (no prefix, so a progress bar draws itself in place)
``folder``         one file a rank, ``rank-2.log``, both streams in the order in which they came
``style``          other prefixes and files: a subclass of :class:`OutputStyle`
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
class OutputStyle:
    """How a line names its rank, and which file it goes to; this is the default, and others derive from it."""

    def prefix(self, rank: int, *, error: bool, coloured: bool) -> str:
        """Give what stands before a line of a rank.

        Args:
            rank: of the worker that wrote it.
            error: it came on standard error.
            coloured: it goes to a terminal that shows colours.
        """
        text = f"[{rank}]"
        return f"\033[{_COLOURS[rank % len(_COLOURS)]}m{text}\033[0m " if coloured else f"{text} "

    def file(self, rank: int, *, error: bool, workers: int) -> str:
        """Name the file, within the folder of :class:`Show`, that receives a stream of a rank."""
        return f"rank-{rank}.log"

    @property
    def shows_what_is_filed(self) -> bool:
        """Whether lines that go to a file are shown as well."""
        return False


@dataclass(frozen=True, kw_only=True)
class Show:
    """How the workers' output is shown.

    Args:
        quiet_ranks: show rank 0 alone.
        folder: write one file a rank there (and show nothing, or rank 0 with ``quiet_ranks``).
        style: the prefixes of lines and the names of files.
    """

    quiet_ranks: bool = False
    folder: Path | None = None
    style: OutputStyle = OutputStyle()


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
        self._workers = workers
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
        elif self._show.folder is None or self._show.style.shows_what_is_filed:
            prefix = self._show.style.prefix(rank, error=error, coloured=self._coloured[error])
            self._write(error, prefixed(prefix.encode(), data))

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
        path = folder / self._show.style.file(rank, error=error, workers=self._workers)
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
