"""Places in the user's code: the file and the line that a person would look at."""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import sysconfig
import tempfile
import threading
from functools import cache
from types import FrameType, TracebackType
from typing import IO

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))) + os.sep
_OBSERVATION = os.path.join(_OURS, "check") + os.sep
_COLLECTIVE = ("torch/distributed/", "torch/nn/parallel/distributed", "torch/autograd/", "rueda/hvd/", "rueda/world/")


def place(frame: FrameType | None = None) -> str:
    """Return where the user's code is, as ``train.py:34``; nothing if no frame is the user's.

    Args:
        frame: the innermost frame; by default the caller's.
    """
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def users_traceback(error: BaseException) -> TracebackType | None:
    """Return an error's traceback as it would be without the observation: frames of ``rueda.check`` are left out."""
    kept = []
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if file != "<frozen runpy>" and not os.path.abspath(file).startswith(_OBSERVATION):
            kept.append(at)
        at = at.tb_next
    for one, following in zip(kept, [*kept[1:], None], strict=True):
        one.tb_next = following
    return kept[0] if kept else None


def main_place() -> tuple[str, bool]:
    """Return where the main thread is in the user's code, and whether it is within a collective there.

    A backward pass counts as a collective, since it may exchange gradients. Any thread may ask: the stack is taken by
    :mod:`faulthandler`, in one piece, while frames would change as the thread runs on.
    """
    in_collective = False
    for file, line in _main_stack():
        if is_users(file):
            return f"{shown(file)}:{line}", in_collective
        in_collective = in_collective or any(part in file.replace(os.sep, "/") for part in _COLLECTIVE)
    return "", False


def _main_stack() -> list[tuple[str, int]]:
    """Return the files and lines of the main thread's stack, the innermost first."""
    file = _stacks()
    file.seek(0)
    file.truncate()
    faulthandler.dump_traceback(file, all_threads=True)
    file.seek(0)
    text = file.read().decode(errors="replace")
    wanted = f"hread 0x{threading.main_thread().ident or 0:016x} "
    for part in text.split("\n\n"):
        if wanted in part.partition("\n")[0]:
            return [
                (match[1], int(match[2])) for match in re.finditer(r'^  File "(.*)", line (\d+)', part, re.MULTILINE)
            ]
    return []


@cache
def _stacks() -> IO[bytes]:
    return tempfile.TemporaryFile()  # it has no name, and is used until the process ends


@cache
def is_users(file: str) -> bool:
    """Return whether a file is the user's: no installed package, no part of Python or Rueda, no generated code."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    real = os.path.abspath(file)
    return not real.startswith((_OURS, *_library()))


@cache
def _library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[name]) + os.sep for name in ("stdlib", "platstdlib"))


@cache
def shown(file: str) -> str:
    """Return a path as a person would write it: relative to the working directory, if it is below that.

    >>> shown("/no/such/folder/train.py")
    '/no/such/folder/train.py'
    """
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
