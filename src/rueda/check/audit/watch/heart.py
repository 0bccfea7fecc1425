"""A thread that says where this worker is, and ends it when the driver asks for that."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.journal import STOP, Journal
from rueda.check.audit.watch.place import main_place

_SECONDS = 0.25
_IDLE = 0.2  # of a core, below which a worker may be waiting


class Heart:
    """Writes ``rank-N.now`` several times a second: the place, whether it is a collective, progress, processor time.

    Args:
        journal: whose folder it writes to.
        counters: by which progress is seen.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self._journal, self._counters = journal, counters
        self._processor = 0.0
        self._file = journal.folder / f"rank-{journal.rank}.now"

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._beat, name="rueda-check", daemon=True).start()

    def _beat(self) -> None:
        stop = self._journal.folder / STOP
        while True:
            self._write()
            if stop.exists():
                leave_now(self._journal)
            time.sleep(_SECONDS)

    def _write(self) -> None:
        processor = time.process_time()
        place, in_collective = "", False
        if processor - self._processor < _IDLE * _SECONDS:  # it waits for something
            place, in_collective = main_place()
        self._processor = processor
        now = {
            "place": place, "collective": in_collective, "progress": self._counters.progress, "processor": processor,
            "process": os.getpid(),
        }  # fmt: skip
        temporary = self._file.with_suffix(".new")
        with suppress(OSError):
            temporary.write_text(json.dumps(now), encoding="utf-8")
            os.replace(temporary, self._file)


def leave_now(journal: Journal) -> None:
    """End this process at once, wherever its other threads are."""
    journal.finish(stopped=True, where=main_place()[0])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    time.sleep(3 * _SECONDS)  # until all have heard it: a worker that is left alone would fail in its collective
    os._exit(0)
