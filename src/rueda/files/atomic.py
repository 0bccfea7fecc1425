"""Writing files whole or not at all: a temporary file, fsync, rename."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from rueda.errors import RunError


def write_atomically(file: Path, content: bytes | memoryview | Callable[[BinaryIO], None]) -> None:
    """Write a file so that a reader sees the old or the new one, never a part, whatever is killed when.

    Args:
        file: where it shall stand; its folder is made.
        content: the bytes, or a function that writes them to an open binary file.

    Raises:
        RunError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    temporary: Path | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".part")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            if callable(content):
                content(stream)
            else:
                stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files for the owner only
        os.replace(temporary, file)
        _sync_folder(file.parent)
    except OSError as error:
        _remove(temporary)
        raise RunError(f"cannot write {file}: {error.strerror or error}; free space or choose another folder") from None
    except BaseException:
        _remove(temporary)
        raise


def _remove(temporary: Path | None) -> None:
    if temporary is not None:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut (a folder is a file too, except on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def plain(value: Any) -> Any:
    """Make what strict JSON can say: tuples become lists; NaN and infinity, which it lacks, null.

    >>> plain({"values": (1.5, float("nan"))})
    {'values': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
