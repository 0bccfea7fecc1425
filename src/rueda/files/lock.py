"""A lock that allows one writing process per folder.

The lock is ``flock`` on the folder itself: it leaves no file behind, and the system releases it when the process ends,
even if it is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rueda.errors import RunError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block; the folder is created if needed.

    Raises:
        RunError: another process holds the lock, or the folder cannot be created or opened.
    """
    import fcntl  # not on Windows, where torch.distributed's launchers do not run either

    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"cannot write into {folder}: {error.strerror}; choose another folder") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder} is being written by another process; wait for it, or choose another folder"
            ) from None
        except OSError:  # a network file system without locks: nothing prevents two writers there
            pass
        yield
    finally:
        os.close(descriptor)
