"""A thread that writes to the terminal or to a pipe, so that a reader which stalls blocks nothing else.

The driver must hear a signal even while nobody reads its output (a pager that waits for a key, a terminal stopped by
Ctrl-S). So it hands lines over to this thread. While more than ``MOST_BYTES`` wait, the driver reads no further lines
from the workers, which then wait in turn, as they would if they wrote to the pipe themselves: nothing is lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from rueda.files.patient_output import write_all

MOST_BYTES = 1 << 20


class StreamWriter:
    """Writes bytes to descriptors in the order in which they are handed over.

    Args:
        changed: called from the thread when everything has been written, when it is no longer behind, and on an error.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._queue: deque[tuple[int, bytes]] = deque()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self.num_waiting = 0
        """bytes that are not written yet"""
        self.error: OSError | None = None
        """why writing failed; what is handed over afterwards is dropped"""

    @property
    def is_behind(self) -> bool:
        """Whether so much waits that no more should be handed over."""
        return self.num_waiting > MOST_BYTES

    def put(self, descriptor: int, data: bytes) -> None:
        """Hand over bytes to be written; returns at once."""
        with self._condition:
            if self.error is not None:
                return
            self._queue.append((descriptor, data))
            self.num_waiting += len(data)
            self._condition.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="output", daemon=True)
            self._thread.start()

    def drain(self, seconds: float | None = None) -> None:
        """Wait until everything is written, or for some seconds."""
        with self._condition:
            self._condition.wait_for(lambda: not self._queue, seconds)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue)
                descriptor, data = self._queue[0]
            error: OSError | None = None
            try:
                write_all(descriptor, data)
            except OSError as caught:
                error = caught
            with self._condition:
                was_behind = self.is_behind
                self._queue.popleft()
                self.num_waiting -= len(data)
                if error is not None:
                    self.error, self.num_waiting = error, 0
                    self._queue.clear()
                self._condition.notify_all()
                tell = not self._queue or was_behind != self.is_behind
            if tell:
                self._changed()
