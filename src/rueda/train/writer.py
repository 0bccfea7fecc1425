"""A thread that writes checkpoints while the training goes on.

The checksum and the writes release Python's interpreter lock, so that while they run the training shares at most a core
with them. One checkpoint is written at a time: the next one waits for it. An error (a full disk) is kept and raised by
the next call of :meth:`CheckpointWriter.wait`; the training asks :attr:`CheckpointWriter.failed` at every step. The
thread is not a daemon, so that a process that ends in any orderly way first finishes its file; ``kill -9`` leaves a
temporary file, which is never taken for a checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rueda.files.remote import AnyPath


class CheckpointWriter:
    """Writes one file at a time.

    >>> from pathlib import Path
    >>> writer = CheckpointWriter()
    >>> writer.begin(lambda: Path("step-00000001.pt"))
    >>> writer.wait().name
    'step-00000001.pt'
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._file: AnyPath | None = None

    @property
    def failed(self) -> bool:
        """Whether a file could not be written, which :meth:`wait` has not raised yet."""
        return self._error is not None

    @property
    def is_writing(self) -> bool:
        """Whether a file is being written."""
        return self._thread is not None and self._thread.is_alive()

    def join(self) -> None:
        """Wait until the last file is written; unlike :meth:`wait` it leaves an error for later."""
        if self._thread is not None:
            self._thread.join()

    def begin(self, write: Callable[[], AnyPath]) -> None:
        """Call a function in a thread, after the one before has ended; see :meth:`wait` for the errors."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(write,), name="rueda checkpoint writer")
        self._thread.start()

    def wait(self) -> AnyPath | None:
        """Wait until the last file is written, and return it; None if none was begun.

        Raises:
            RuedaError: it could not be written; raised once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._file

    def _run(self, write: Callable[[], AnyPath]) -> None:
        try:
            self._file = write()
        except Exception as error:
            self._error = error
