"""The journal of a worker: what was observed, one JSON object in each line of a file that the driver reads.

Files, and no collectives of our own: an observer that exchanged messages in the script's process groups would change
the very order of collectives that it is there to see. A line is written whole, so a worker that is killed loses nothing
that it noted before.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

VARIABLE = "RUEDA_CHECK"
STOP = "stop"
"""the file by which the driver asks all workers to end"""
ENDED, LIMIT = "ended", "limit"
"""marks of a worker whose observation has ended, and of one that has made enough updates"""
_ERRORS = 8  # of the observation that are noted


class Journal:
    """Writes the observations of one worker.

    Args:
        folder: where the journals of all workers are.
        rank: the rank of this worker.
    """

    def __init__(self, folder: str | Path, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank
        self._lock = threading.RLock()
        self._descriptor, self._name = -1, ""
        self._process = 0
        self._finishers: list[Callable[[], None]] = []
        self._finished = False
        self.careful = Careful(self)
        os.register_at_fork(after_in_child=self._begin_in_child)

    def _begin_in_child(self) -> None:
        self._lock = threading.RLock()  # another thread may have held the old one when this process was forked

    def note(self, kind: str, **values: Any) -> None:
        """Write one observation."""
        with self._lock:
            if self._process != os.getpid():  # a loader's worker process writes a file of its own
                name = f"rank-{self.rank}.jsonl" if self._process == 0 else f"rank-{self.rank}-{os.getpid()}.jsonl"
                self._process = os.getpid()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor, self._name = os.open(self.folder / name, flags, 0o600), name
            os.write(self._descriptor, self._encoded({"kind": kind, **values}, self._name))

    def _encoded(self, values: dict[str, Any], name: str) -> bytes:
        """Return the line of an observation in the file of this name."""
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"

    def mark(self, name: str) -> None:
        """Make an empty file by which the driver, which looks twice a second, knows what this worker has done."""
        (self.folder / f"rank-{self.rank}.{name}").touch()

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
                with self.careful:
                    one()
            self.note("end", **values)
            self.mark(ENDED)


class Careful:
    """A context in which an error of the observation is noted, and then forgotten.

    The observation meets objects of all kinds, and must never be the reason why somebody's script fails: what could
    not be observed counts as not seen.

    Args:
        journal: where errors are noted.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._count = 0

    def __enter__(self) -> None:
        """Begin to observe."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Note an error; others than exceptions, such as Ctrl-C, are the script's."""
        if not isinstance(error, Exception):
            return False
        self._count += 1
        if self._count <= _ERRORS:
            last = traceback.extract_tb(at)[-1]
            where = f"{os.path.basename(last.filename)}:{last.lineno}"
            self._journal.note("blind", text=f"{type(error).__name__}: {error}"[:500], where=where)
        return True
