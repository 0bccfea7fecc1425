"""The timeline: a record of all collectives in Chrome's trace format, for ``chrome://tracing`` or Perfetto.

Every tensor has a row. ``NEGOTIATE_ALLREDUCE`` lasts from the first rank's submission to the last one's, with a mark
for each rank. ``ALLREDUCE`` is the execution, and contains its phases: ``INLINE_ALLREDUCE`` (small payloads came with
the negotiation), ``COPY_INTO_FUSION_BUFFER``, ``GROUP_ALLREDUCE``, ``COPY_OUT_OF_FUSION_BUFFER``. ``CYCLE_START`` marks
are optional.

A file that cannot be written ends the timeline with a warning, not the training.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

_log = logging.getLogger("rueda.hvd")


class Timeline:
    """Writes a timeline file while ``active`` is True; callers test that first, to save work."""

    def __init__(self) -> None:
        self.active = False
        self.mark_cycles = False
        self._file: IO[str] | None = None
        self._path = ""
        self._rows: dict[str, int] = {}
        self._open: Counter[str] = Counter()  # the number of phases on each row that have not ended
        self._lock = threading.Lock()
        self._zero = 0.0

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Start a new file, and finish the one that was being written."""
        self.stop()
        with self._lock, self._ends_if_unwritable(path):
            self._file = open(path, "w")  # noqa: SIM115  closed by stop()
            self._path = path
            self._file.write("[\n")
            self._rows, self._open = {}, Counter()
            self._zero = time.perf_counter()
            self.mark_cycles = mark_cycles
            self.active = True
            self._write("M", 0, name="process_name", args={"name": "cycles"})

    def stop(self) -> None:
        """End all open phases and finish the file, which is then valid JSON."""
        with self._lock:
            if self._file is None:
                return
            self.active = False
            for tensor in self._open.elements():
                self._write("E", self._rows[tensor])
            self._write("i", 0, separator="\n]\n", name="end", s="g")
            with self._ends_if_unwritable(self._path):
                if self._file is not None:
                    self._file.close()
            self._file = None

    def after_fork(self) -> None:
        """Write nothing more in a forked process, not even what its parent has not written yet."""
        self.active = False
        self._lock = threading.Lock()
        if self._file is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)

    def begin(self, tensors: Iterable[str], what: str) -> None:
        """Begin a phase on the rows of some tensors."""
        with self._lock:
            for tensor in tensors if self.active else ():
                self._open[tensor] += 1
                self._write("B", self._row(tensor), name=what)

    def end(self, tensors: Iterable[str]) -> None:
        """End the phase that was begun last on the rows of some tensors."""
        with self._lock:
            for tensor in tensors if self.active else ():
                if self._open[tensor]:
                    self._open[tensor] -= 1
                    self._write("E", self._row(tensor))

    @contextmanager
    def phase(self, tensors: list[str], what: str) -> Iterator[None]:
        """Record a block of code as a phase on the rows of some tensors."""
        self.begin(tensors, what)
        try:
            yield
        finally:
            self.end(tensors)

    def mark(self, tensor: str, what: str) -> None:
        """Mark the present time on the row of a tensor."""
        with self._lock:
            if self.active:
                self._write("i", self._row(tensor), name=what, s="p")

    def cycle(self) -> None:
        """Mark the start of a cycle, if cycles are to be marked."""
        with self._lock:
            if self.active and self.mark_cycles:
                self._write("i", 0, name="CYCLE_START", s="g")

    def _row(self, tensor: str) -> int:
        if tensor not in self._rows:
            row = self._rows[tensor] = len(self._rows) + 1
            self._write("M", row, name="process_name", args={"name": tensor})
            self._write("M", row, name="process_sort_index", args={"sort_index": row})
        return self._rows[tensor]

    def _write(self, event: str, row: int, separator: str = ",\n", **fields: Any) -> None:
        if self._file is None:  # it could not be written
            return
        microseconds = round((time.perf_counter() - self._zero) * 1e6)
        line = json.dumps({"ph": event, "pid": row, "tid": 0, "ts": microseconds, **fields}) + separator
        with self._ends_if_unwritable(self._path):
            self._file.write(line)

    @contextmanager
    def _ends_if_unwritable(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            file, self._file, self.active = self._file, None, False
            if file is not None:
                with suppress(OSError):  # it tries to write the rest once more
                    file.close()
            _log.warning("timeline %s: cannot be written (%s); it ends here", path, error.strerror)
