"""Atomic writes: write a temporary file, fsync it, and rename it."""

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
    """Write a file atomically: after a crash at any moment it holds the old or the new contents, never a mixture.

    A device or a pipe (``/dev/null``, ``/dev/stdout``) is written into, not replaced by a file, and a symbolic link
    keeps pointing where it points.

    Args:
        file: the path; its folder is created if needed.
        content: the bytes, or a function that writes them to an open binary file.

    Raises:
        RunError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    try:
        if _is_device(file):
            with open(file, "wb") as stream:
                content(stream) if callable(content) else stream.write(content)
            return
    except OSError as error:
        raise _cannot_write(file, error) from None

    def write(stream: BinaryIO) -> str:
        content(stream) if callable(content) else stream.write(content)
        return target.name

    target = Path(os.path.realpath(file))
    _write_and_rename(target.parent, target.name, write, meant=file)


def write_named_atomically(folder: Path, write: Callable[[BinaryIO], str], *, meant: str = "") -> Path:
    """Write a file atomically whose name depends on its contents; see :func:`write_atomically`.

    Args:
        folder: the folder of the file; it is created if needed.
        write: writes the contents to an open binary file, and returns the name of the file.
        meant: how the file is called in messages before its name is known.
    """
    return _write_and_rename(folder, meant, write, meant=folder / meant)


def _write_and_rename(folder: Path, prefix: str, write: Callable[[BinaryIO], str], *, meant: Path) -> Path:
    """Write a temporary file, flush it to disk, and rename it to what ``write`` returns; errors name ``meant``."""
    temporary: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{prefix}.", suffix=".part")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            target = folder / write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp creates files that only the owner can read
        os.replace(temporary, target)
        _sync_folder(folder)
    except OSError as error:
        _remove(temporary)
        raise _cannot_write(meant, error) from None
    except BaseException:
        _remove(temporary)
        raise
    return target


def _cannot_write(file: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {file}: {error.strerror or error}; free space or choose another folder")


def check_writable(file: Path) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold; nothing is created."""
    if _is_device(file):
        return
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if file.is_dir():
        raise RunError(f"cannot write {file}: it is a folder; choose the name of a file")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise RunError(f"cannot write {file}: {folder} is not a folder that can be written to; choose another folder")


def _is_device(file: Path) -> bool:
    """Whether the path is something that exists and is neither a regular file nor a folder."""
    return file.exists() and not (file.is_file() or file.is_dir())


def _remove(temporary: Path | None) -> None:
    if temporary is not None:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _umask() -> int:
    """Return the umask; Linux tells it, elsewhere it is set and set back, which other threads may notice."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Flush the folder to disk, so that the rename survives a power failure; Windows cannot flush a folder."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def plain(value: Any) -> Any:
    """Convert a value to one that strict JSON can represent: tuples become lists, NaN and infinity become null.

    >>> plain({"values": (1.5, float("nan"))})
    {'values': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
