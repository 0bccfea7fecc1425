"""The journal of a worker: what was observed, one JSON object in each line of a file that the driver reads.

Files, and no collectives of our own: an observer that exchanged messages in the script's process groups would change
the very order of collectives that it is there to see. A line is written whole, so a worker that is killed loses nothing
that it noted before.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "RUEDA_CHECK"
STOP = "stop"
"""the file by which the driver asks all workers to end"""


class Journal:
    """Writes the observations of one worker.

    Args:
        folder: where the journals of all workers are.
        rank: the rank of this worker.
    """

    def __init__(self, folder: str | Path, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank
        self._lock = threading.RLock()
        self._descriptor = -1
        self._process = 0
        self._finishers: list[Callable[[], None]] = []
        self._finished = False

    def note(self, kind: str, **values: Any) -> None:
        """Write one observation."""
        line = json.dumps({"kind": kind, **values}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._process != os.getpid():  # a loader's worker process writes a file of its own
                name = f"rank-{self.rank}.jsonl" if self._process == 0 else f"rank-{self.rank}-{os.getpid()}.jsonl"
                self._process = os.getpid()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self.folder / name, flags, 0o600)
            os.write(self._descriptor, line)

    def on_finish(self, finish: Callable[[], None]) -> None:
        """Call a function when the observation ends: it notes what was still being counted."""
        self._finishers.append(finish)

    def finish(self, **values: Any) -> None:
        """Note what was being counted, and that this worker has ended."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            for one in self._finishers:
                one()
            self.note("end", **values)
