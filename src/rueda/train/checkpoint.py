"""Checkpoint files: everything a training needs to continue, written atomically and verified when read.

A checkpoint is one file. Its name, such as ``step-00000120.4f1c20d96f9b3a57.pt``, holds the number of updates and a
BLAKE2b checksum of the file's bytes. A complete file gets this name by an atomic rename. A file that is truncated or
damaged does not match the checksum in its name; it is skipped with a warning and the checkpoint before it is used.
``best.<checksum>.pt`` is a copy of the checkpoint with the best result, on validation data where the task has some and
otherwise on test data, so that damage to one spares the other.

Reading never runs code from the file (``weights_only``): it holds tensors, numbers, text, lists and dictionaries.

The folder may be on this machine or on object storage (:mod:`rueda.files.remote`): the files and their names are the
same.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rueda.errors import CheckpointError
from rueda.files.atomic import write_atomically, write_named_atomically
from rueda.files.remote import AnyPath, RemotePath

_NAME = re.compile(r"(?:step-(\d{8,})|best)\.([0-9a-f]{16})\.pt")


def save_checkpoint(
    folder: AnyPath, state: dict[str, Any], *, step: int, keep: int, best: bool = False,
    known: set[AnyPath] | None = None,
) -> AnyPath:  # fmt: skip
    """Write a checkpoint, and delete all others but the last ``keep`` intact ones and the best.

    Checkpoints of the same or a later step are deleted, too: the training has gone back to an earlier step.

    Args:
        folder: the folder of the checkpoints.
        state: the contents, which may be tensors, numbers, text, lists and dictionaries.
        step: updates made so far.
        keep: how many of the newest checkpoints are kept; damaged ones do not count.
        best: whether this one has the best result so far.
        known: files that are known to be intact, and are therefore not read again; the new one is added.
    """
    file = _write(folder, state, f"step-{step:08d}")
    known = set() if known is None else known
    known.add(file)
    if best:
        _copy_as_best(file)
    remove_from(folder, step, but=file)
    num_kept = 0
    for other in list_checkpoints(folder):
        if num_kept < keep and (other in known or _is_intact(other)):
            known.add(other)
            num_kept += 1
        else:
            other.unlink(missing_ok=True)
            known.discard(other)
    for left_over in folder.glob(".*.part"):  # from a process that was killed while writing
        left_over.unlink(missing_ok=True)
    return file


class _ChecksumStream:
    """Passes what torch writes on to a file, piece by piece, and computes the checksum on the way.

    No second copy of the contents is made in memory, and both the checksum and the write release Python's interpreter
    lock, so that a training goes on while its checkpoint is written by a thread.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.error: OSError | None = None
        """why the file could not be written; torch raises another error instead"""
        self._stream, self._hash = stream, hashlib.blake2b(digest_size=8)

    def write(self, data: bytes | memoryview) -> int:
        try:
            self._stream.write(data)
        except OSError as error:
            self.error = error
            raise
        self._hash.update(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def checksum(self) -> str:
        return self._hash.hexdigest()


def _write(folder: AnyPath, state: dict[str, Any], name: str) -> AnyPath:
    """Write a checkpoint under its name with the checksum, and return its path."""

    def write(stream: BinaryIO) -> str:
        summed = _ChecksumStream(stream)
        try:
            torch.save(state, summed)  # type: ignore[arg-type]  # it needs write and flush only
        except Exception:
            if summed.error is not None:
                raise summed.error from None
            raise
        return f"{name}.{summed.checksum()}.pt"

    if isinstance(folder, RemotePath):
        return folder.write_named(write)
    return write_named_atomically(folder, write, meant=f"{name}.pt")


def remove_from(folder: AnyPath, step: int, *, but: AnyPath) -> None:
    """Remove the checkpoints of a step and of all later ones, except for one file."""
    for file in list_checkpoints(folder):
        if step_of(file) >= step and file != but:
            file.unlink(missing_ok=True)


def copy_as_step(file: AnyPath, step: int) -> AnyPath:
    """Return the file of a checkpoint under the name of its step; the best one is copied to it if it is not there."""
    named = file.with_name(f"step-{step:08d}.{file.name.split('.')[1]}.pt")
    if not named.exists():
        _copy(file, named)
    return named


def list_checkpoints(folder: AnyPath) -> list[AnyPath]:
    """List the checkpoint files, newest first, without reading them; ``best.*.pt`` is not among them."""
    found = []
    for file in folder.glob("step-*.pt"):
        with suppress(FileNotFoundError):  # the training that writes it may remove it meanwhile
            about = file.stat()
            if (match := _NAME.fullmatch(file.name)) and stat.S_ISREG(about.st_mode):
                found.append((int(match[1]), about.st_mtime_ns, file))  # of one step, the last one written comes first
    return [file for _, _, file in sorted(found, reverse=True)]


def step_of(file: AnyPath) -> int:
    """Return the number of updates in the name of a checkpoint that :func:`list_checkpoints` found."""
    return int(file.name.split(".")[0].removeprefix("step-"))


def best_checkpoint(folder: AnyPath) -> AnyPath | None:
    """Return the checkpoint with the best result, or None."""
    return next((file for file in folder.glob("best.*.pt") if _NAME.fullmatch(file.name)), None)


def find_checkpoint(folder: AnyPath, wanted: str) -> AnyPath | None:
    """Return the newest checkpoint (``last``), the best one (``best``), or that of a step; None if there is none."""
    if wanted == "best":
        return best_checkpoint(folder)
    return next((file for file in list_checkpoints(folder) if wanted in ("last", str(step_of(file)))), None)


def load_checkpoint(file: AnyPath) -> dict[str, Any]:
    """Read a checkpoint and verify it against the checksum in its name.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, or not a checkpoint.
    """
    return parse_checkpoint(file, read_checkpoint(file))


def read_checkpoint(file: AnyPath) -> bytes:
    """Read the bytes of a checkpoint and verify them against the checksum in its name; see :func:`load_checkpoint`."""
    match = _NAME.fullmatch(file.name)
    if match is None:
        raise CheckpointError(f"{file}: expected a name like step-00000120.<checksum>.pt; it is not a checkpoint")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from None
    if _checksum(content) != match[2]:
        raise CheckpointError(f"{file} is truncated or damaged: its bytes do not match the checksum in its name")
    return content


def parse_checkpoint(file: AnyPath, content: bytes) -> dict[str, Any]:
    """Return the contents of a checkpoint from its bytes; ``file`` is named in messages."""
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        first_line = str(error).splitlines()[0]
        raise CheckpointError(f"{file} cannot be read ({first_line}); was it written by another program?") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: expected a dictionary, got {type(state).__name__}")
    return state


def read_newest(folder: AnyPath, wanted: str = "last") -> tuple[AnyPath, bytes] | None:
    """Read a checkpoint for a training that continues.

    Args:
        folder: the folder of the checkpoints.
        wanted: ``last``, the newest one that is intact (damaged ones are skipped with a warning); ``best``; or a step.

    Returns:
        The file and its verified bytes; None if the last one is wanted and the folder has none.

    Raises:
        CheckpointError: all checkpoints are damaged, or there is none of that step.
    """
    files = list_checkpoints(folder)
    if wanted != "last":
        file = find_checkpoint(folder, wanted)
        if file is None:
            steps = ", ".join(str(step_of(file)) for file in reversed(files))
            expected = f"last, best or the step of a checkpoint ({steps or 'there is none'})"
            raise CheckpointError(str(folder), expected=expected, got=wanted, do="choose one of them")
        return file, read_checkpoint(file)
    for file in files:
        try:
            return file, read_checkpoint(file)
        except CheckpointError as error:
            warnings.warn(f"{error}; it is skipped", RuntimeWarning, stacklevel=2)
    if not files:
        return None
    best = best_checkpoint(folder)
    instead = "" if best is None or not _is_intact(best) else "resume from the best one, which is intact (best), or "
    raise CheckpointError(
        f"{folder}: all {len(files)} checkpoints are damaged; {instead}restore one from a copy, or start a new run in "
        "another folder"
    )


def latest_checkpoint(folder: AnyPath) -> tuple[AnyPath, dict[str, Any]] | None:
    """Load the newest intact checkpoint; see :func:`read_newest`."""
    found = read_newest(folder)
    return None if found is None else (found[0], parse_checkpoint(*found))


def _copy_as_best(file: AnyPath) -> None:
    new = file.with_name(f"best.{file.name.split('.')[1]}.pt")
    _copy(file, new)
    for old in file.parent.glob("best.*.pt"):
        if old != new:
            old.unlink(missing_ok=True)


def _copy(file: AnyPath, new: AnyPath) -> None:
    """Copy a checkpoint to another name in the same folder."""
    if isinstance(file, RemotePath):
        file.copy_to(new.name)
        return

    def write(stream: BinaryIO) -> None:
        with open(file, "rb") as source:
            shutil.copyfileobj(source, stream, 2**20)

    write_atomically(Path(str(new)), write)


def _is_intact(file: AnyPath) -> bool:
    try:
        read_checkpoint(file)
    except CheckpointError:
        return False
    return True


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
