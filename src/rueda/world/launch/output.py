"""The output of the workers: on the screen, and in files.

=================  =======================================================================================
by default         every line with its rank: ``[2] loss 0.31``; standard error goes to standard error
``quiet_ranks``    only rank 0, without a prefix, so that a progress bar can redraw itself in place; of the other
                   ranks only reports of a stall (:mod:`rueda.world.stall`)
``folder``         one file for each rank, ``rank-2.log``, with both streams in the order in which they arrived; the
                   files of an earlier run are kept as ``rank-2.1.log``
``style``          other prefixes and files: a subclass of :class:`OutputStyle`
=================  =======================================================================================
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, TextIO

from rueda.errors import LaunchError
from rueda.world.launch.protocol import STDERR
from rueda.world.launch.stream_writer import StreamWriter
from rueda.world.stall.limits import PREFIX

_TAIL_BYTES = 1 << 16
_COLOURS = (36, 33, 32, 35, 34, 31)  # cyan, yellow, green, magenta, blue, red
_STALL = PREFIX.encode()
_TRACEBACK = b"Traceback (most recent call last):"


@dataclass(frozen=True, kw_only=True)
class OutputStyle:
    """The prefix of a line and the file that it is written to; subclasses define other styles."""

    shows_filed_lines: ClassVar[bool] = False  # whether lines that are written to a file are shown as well

    def prefix(self, rank: int, *, error: bool, coloured: bool) -> str:
        """Return the prefix of a worker's line.

        Args:
            rank: the worker's rank.
            error: whether the line was written to standard error.
            coloured: whether it is shown on a terminal with colours.
        """
        text = f"[{rank}]"
        return f"\033[{_COLOURS[rank % len(_COLOURS)]}m{text}\033[0m " if coloured else f"{text} "

    def file(self, rank: int, *, error: bool, workers: int) -> str:
        """Return the name of the file, within the folder, for a stream of a rank."""
        return f"rank-{rank}.log"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How the workers' output is shown.

    Args:
        quiet_ranks: show only rank 0.
        folder: write one file for each rank there, and show nothing, or only rank 0 with ``quiet_ranks``.
        style: the prefixes of lines and the names of files.
        to_stderr: show the workers' standard output on standard error, since the command has one of its own.
    """

    quiet_ranks: bool = False
    folder: Path | None = None
    style: OutputStyle = OutputStyle()
    to_stderr: bool = False


def prefixed(prefix: bytes, data: bytes) -> bytes:
    r"""Put a prefix before each line; every state of a progress bar that redraws itself becomes a line.

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
    """Return whether a stream is a terminal that shows colours (see no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Shows and files the workers' output, and keeps the end of each worker's standard error.

    Args:
        options: what is shown and filed.
        workers: the number of workers.
        changed: called from another thread when the waiting output has been written, and when that failed.
        rank_of: the rank under which a worker's lines are shown and filed; in an elastic job the workers are numbered,
            since their ranks change.
    """

    def __init__(
        self, options: OutputOptions, *, workers: int = 1, changed: Callable[[], None] = lambda: None,
        rank_of: Callable[[int], int] = lambda number: number,
    ) -> None:  # fmt: skip
        self._options = options
        self._rank_of = rank_of
        self._workers = workers
        self._files: dict[Path, BinaryIO] = {}
        self._streams: dict[bool, TextIO | None] = {
            True: sys.stderr,
            False: sys.stderr if options.to_stderr else sys.stdout,
        }
        self._coloured = {error: stream is not None and colours(stream) for error, stream in self._streams.items()}
        self._descriptors = {error: _descriptor(stream) for error, stream in self._streams.items()}
        out, err = StreamWriter(changed), StreamWriter(changed)
        # One thread keeps the order of lines where both streams lead to the same place.
        self._writers = {True: out if _is_same(*self._descriptors.values()) else err, False: out}
        self._tails: dict[int, bytearray] = {}
        self._has_told_closed = False
        self.drops_when_behind = False
        """whether lines are dropped, instead of waiting in memory, while the reader of the output stalls"""
        self.num_dropped = 0
        """how many lines were dropped"""
        self.traceback_seconds: dict[int, float] = {}  # by worker: when its last traceback began, on the driver's clock
        if options.folder is not None:
            try:
                options.folder.mkdir(parents=True, exist_ok=True)
                self._keep_earlier_files(options.folder)
            except OSError as error:
                raise LaunchError(
                    f"--output {options.folder}: cannot be created ({error.strerror}); choose a writable folder"
                ) from None

    def write(self, kind: bytes, number: int, data: bytes) -> None:
        """Show and file complete lines of a worker."""
        options, error, rank = self._options, kind == STDERR, self._rank_of(number)
        if error:
            self._keep_tail(number, data)
        if options.folder is not None:
            self._file(options.folder, rank, error).write(data)
        if options.quiet_ranks:
            if rank == 0:
                self._show(error, data)
            elif error and (report := [line for line in data.splitlines(True) if line.startswith(_STALL)]):
                self._show(error, b"".join(report))  # rank 0 may be the one that is stopped
        elif options.folder is None or options.style.shows_filed_lines:
            prefix = options.style.prefix(rank, error=error, coloured=self._coloured[error])
            self._show(error, prefixed(prefix.encode(), data))

    def _show(self, error: bool, data: bytes) -> None:
        stream, descriptor, writer = self._streams[error], self._descriptors[error], self._writers[error]
        if stream is None:  # closed by the shell, as in `rueda run ... >&-`
            if not error and not self._has_told_closed:
                self._has_told_closed = True
                self.note("standard output is closed, so the workers' output is not shown; it can go to --output DIR")
        elif descriptor is None:  # sys.stdout was replaced by a stream in memory
            binary = getattr(stream, "buffer", None)
            stream.write(data.decode(errors="replace")) if binary is None else binary.write(data)
            stream.flush()
        elif self.drops_when_behind and writer.is_behind:
            self.num_dropped += data.count(b"\n")
        else:
            if not writer.num_waiting:
                stream.flush()  # what this process printed itself comes first
            writer.put(descriptor, data)

    @property
    def num_waiting(self) -> int:
        """Bytes that the reader of the output has not taken yet."""
        return sum(writer.num_waiting for writer in {*self._writers.values()})

    @property
    def is_behind(self) -> bool:
        """Whether so much output waits that the workers should wait as well."""
        return any(writer.is_behind for writer in self._writers.values())

    @property
    def error(self) -> OSError | None:
        """Why the output could not be written."""
        return self._writers[False].error or self._writers[True].error

    def _file(self, folder: Path, rank: int, error: bool) -> BinaryIO:
        path = folder / self._options.style.file(rank, error=error, workers=self._workers)
        if path not in self._files:
            path.parent.mkdir(exist_ok=True)
            # Unbuffered, so that `tail -f` shows every line at once.
            self._files[path] = open(path, "ab", buffering=0)  # noqa: SIM115
        return self._files[path]

    def _keep_earlier_files(self, folder: Path) -> None:
        """Rename the files of an earlier run: ``rank-2.log`` becomes ``rank-2.1.log``, or the next free number."""
        first = ""
        for rank in itertools.count():
            names = {self._options.style.file(rank, error=error, workers=self._workers) for error in (True, False)}
            found = [folder / name for name in sorted(names) if (folder / name).exists()]
            if not found and rank >= self._workers:  # the earlier run may have had more workers
                break
            for path in found:
                numbered = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
                kept = next(other for other in numbered if not other.exists())
                path.rename(kept)
                first = first or str(kept.relative_to(folder))
        if first:
            self.note(f"the output of an earlier run is kept in {folder}: {first}" + " and so on" * (self._workers > 1))

    def _keep_tail(self, number: int, data: bytes) -> None:
        tail = self._tails.setdefault(number, bytearray())
        tail += data
        del tail[:-_TAIL_BYTES]
        if _TRACEBACK in data:
            now = time.monotonic()
            # Chained exceptions are written as several tracebacks at once: the first one tells the time.
            if now - self.traceback_seconds.get(number, -1e9) > 1.0:
                self.traceback_seconds[number] = now

    def stderr_tail(self, number: int) -> str:
        """Return the end of a worker's standard error."""
        return self._tails.get(number, bytearray()).decode(errors="replace")

    def note(self, text: str) -> None:
        """Print a message of the launcher itself on standard error."""
        with contextlib.suppress(OSError, ValueError):
            self._show(True, f"rueda: {text}\n".encode(errors="replace"))

    def close(self, *, wait: bool = True) -> None:
        """Close the files; with ``wait``, return when the reader of the output has taken everything."""
        for file in self._files.values():
            file.close()
        for writer in self._writers.values():
            writer.drain(None if wait else 0.0)


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the descriptor of a stream; None for a stream in memory, or a closed one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return None if stream is None else stream.fileno()
    return None


def _is_same(first: int | None, second: int | None) -> bool:
    """Return whether two descriptors lead to the same terminal, pipe or file."""
    if first is None or second is None:
        return False
    return os.path.samestat(os.fstat(first), os.fstat(second))
