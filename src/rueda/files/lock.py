"""One writer at a time: a folder can be held, and is let go when its holder ends, however it ends.

The lock is ``flock`` on the folder itself: no file is left behind, and a killed process holds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rueda.errors import RunError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder while the block runs; it is made if it is not there.

    Raises:
        RunError: another process holds it.
    """
    import fcntl  # not on Windows, where torch.distributed's launchers do not run either

    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"cannot write into {folder}: {error.strerror}; choose another --folder") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder} is being written by another process; wait for it, or choose another --folder"
            ) from None
        except OSError:  # a network file system without locks: then two writers are the user's care
            pass
        yield
    finally:
        os.close(descriptor)
