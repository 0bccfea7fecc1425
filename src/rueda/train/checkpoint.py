"""Checkpoints: all it takes to go on, written whole or not at all, checked when read.

A checkpoint is one file, ``step-00000120.4f1c20d96f9b3a57.pt``: the number of updates, then a checksum (BLAKE2b) of its
own bytes. The name is given by the last, atomic rename, so a file that is torn, cut or damaged later does not match
its name; it is passed over with a warning and the one before it is used. ``best.<checksum>.pt`` is a second name
of the file with the best test result.

Reading never runs code from the file (``weights_only``): it holds tensors, numbers, text, lists and dictionaries.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from rueda.errors import CheckpointError
from rueda.files.atomic import write_atomically

_NAME = re.compile(r"(?:step-(\d{8,})|best)\.([0-9a-f]{16})\.pt")


def save_checkpoint(folder: Path, state: dict[str, Any], *, step: int, keep: int, best: bool = False) -> Path:
    """Write a checkpoint and drop all but the last ``keep`` and the best.

    Args:
        folder: where the checkpoints stand.
        state: tensors, numbers, text, lists, dictionaries.
        step: updates made so far.
        keep: how many of the last ones stay.
        best: name this one the best, too.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    file = folder / f"step-{step:08d}.{_checksum(content)}.pt"
    write_atomically(file, content)
    if best:
        _name_best(file)
    for old in list_checkpoints(folder)[keep:]:
        old.unlink(missing_ok=True)
    for left_over in folder.glob(".*.part"):  # of a process that was killed while it wrote
        left_over.unlink(missing_ok=True)
    return file


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints, newest first, unread; the best one under its second name is left out."""
    found = [(int(match[1]), file) for file in folder.glob("step-*.pt") if (match := _NAME.fullmatch(file.name))]
    return [file for _, file in sorted(found, reverse=True)]


def best_checkpoint(folder: Path) -> Path | None:
    """Find the checkpoint with the best test result."""
    return next((file for file in folder.glob("best.*.pt") if _NAME.fullmatch(file.name)), None)


def load_checkpoint(file: Path) -> dict[str, Any]:
    """Read one checkpoint and check it against its name.

    Raises:
        CheckpointError: it is missing, torn, damaged, or not a checkpoint.
    """
    match = _NAME.fullmatch(file.name)
    if match is None:
        raise CheckpointError(f"{file}: expected a name like step-00000120.<checksum>.pt; it is not a checkpoint")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from None
    if _checksum(content) != match[2]:
        raise CheckpointError(f"{file} is torn or damaged: its bytes do not match the checksum in its name")
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        first_line = str(error).splitlines()[0]
        raise CheckpointError(f"{file} cannot be read ({first_line}); was it written by another program?") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: expected a dictionary, got {type(state).__name__}")
    return state


def latest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Read the newest checkpoint that is whole; a damaged one is passed over with a warning."""
    for file in list_checkpoints(folder):
        try:
            return file, load_checkpoint(file)
        except CheckpointError as error:
            warnings.warn(f"{error}; using the one before it", RuntimeWarning, stacklevel=2)
    return None


def _name_best(file: Path) -> None:
    checksum = file.name.split(".")[1]
    new = file.with_name(f"best.{checksum}.pt")
    link = file.with_name(f".best.{os.getpid()}.part")
    link.unlink(missing_ok=True)
    try:
        os.link(file, link)
        os.replace(link, new)
        link.unlink(missing_ok=True)  # rename of two links to one file leaves both
    except OSError:  # a file system without links
        write_atomically(new, file.read_bytes())
    for old in file.parent.glob("best.*.pt"):
        if old != new:
            old.unlink(missing_ok=True)


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
