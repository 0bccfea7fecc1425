"""What happened when, in Chrome's trace format: open the file in ``chrome://tracing`` or Perfetto.

Every tensor has a row. ``NEGOTIATE_ALLREDUCE`` lasts from the first rank that submits it to the last, with a mark for
each rank; ``ALLREDUCE`` is the execution, with its phases inside: ``RIDE`` (small payloads came with the negotiation),
``COPY_INTO_FUSION_BUFFER``, ``GROUP_ALLREDUCE``, ``COPY_OUT_OF_FUSION_BUFFER``. ``CYCLE_START`` marks are optional.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any


class Timeline:
    """The file, if one is being written; ``active`` tells, so that nothing is computed in vain."""

    def __init__(self) -> None:
        self.active = False
        self.mark_cycles = False
        self._file: IO[str] | None = None
        self._rows: dict[str, int] = {}
        self._open: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self._zero = 0.0

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Begin a file; one that was being written is finished."""
        self.stop()
        with self._lock:
            self._file = open(path, "w")  # noqa: SIM115  closed by stop()
            self._file.write("[\n")
            self._rows, self._open = {}, {}
            self._zero = time.perf_counter()
            self.mark_cycles = mark_cycles
            self.active = True
            self._write({"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "cycles"}})

    def stop(self) -> None:
        """Finish the file; it is whole JSON then."""
        with self._lock:
            if self._file is None:
                return
            self.active = False
            for row, names in self._open.items():
                for _ in names:
                    self._write({"ph": "E", "pid": self._rows[row], "ts": self._now()})
            self._file.write(json.dumps({"name": "end", "ph": "i", "pid": 0, "ts": self._now(), "s": "g"}) + "\n]\n")
            self._file.close()
            self._file = None

    def begin(self, tensors: Iterable[str], what: str) -> None:
        """Begin a phase on the rows of some tensors."""
        with self._lock:
            for tensor in tensors if self.active else ():
                self._open.setdefault(tensor, []).append(what)
                self._write({"name": what, "ph": "B", "pid": self._row(tensor), "ts": self._now()})

    def end(self, tensors: Iterable[str]) -> None:
        """End the phase that began last on these rows."""
        with self._lock:
            for tensor in tensors if self.active else ():
                if self._open.get(tensor):
                    self._open[tensor].pop()
                    self._write({"ph": "E", "pid": self._row(tensor), "ts": self._now()})

    @contextmanager
    def phase(self, tensors: list[str], what: str) -> Iterator[None]:
        """Write a phase around a block."""
        if not self.active:
            yield
            return
        self.begin(tensors, what)
        try:
            yield
        finally:
            self.end(tensors)

    def mark(self, tensor: str, what: str) -> None:
        """Mark a moment on a tensor's row."""
        with self._lock:
            if self.active:
                self._write({"name": what, "ph": "i", "pid": self._row(tensor), "ts": self._now(), "s": "p"})

    def cycle(self) -> None:
        """Mark the start of a cycle."""
        with self._lock:
            if self.active and self.mark_cycles:
                self._write({"name": "CYCLE_START", "ph": "i", "pid": 0, "ts": self._now(), "s": "g"})

    def _row(self, tensor: str) -> int:
        if tensor not in self._rows:
            self._rows[tensor] = len(self._rows) + 1
            number = self._rows[tensor]
            self._write({"name": "process_name", "ph": "M", "pid": number, "args": {"name": tensor}})
            self._write({"name": "process_sort_index", "ph": "M", "pid": number, "args": {"sort_index": number}})
        return self._rows[tensor]

    def _now(self) -> int:
        return round((time.perf_counter() - self._zero) * 1e6)  # microseconds

    def _write(self, event: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps({**event, "tid": 0}) + ",\n")
