"""Places in the user's code: the file and the line that a person would look at."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from functools import cache
from types import FrameType

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))) + os.sep
_COLLECTIVE = ("torch/distributed/", "torch/nn/parallel/distributed", "torch/autograd/", "rueda/hvd/", "rueda/world/")


def place(frame: FrameType | None = None, *, skip: str = "") -> str:
    """Return where the user's code is, as ``train.py:34``; nothing if no frame is the user's.

    Args:
        frame: the innermost frame; by default the caller's.
        skip: the name of a function whose frames do not count, such as ``forward``.
    """
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        if is_users(frame.f_code.co_filename) and frame.f_code.co_name != skip:
            return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def main_frame() -> FrameType | None:
    """Return the innermost frame of the main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def is_in_collective(frame: FrameType | None) -> bool:
    """Return whether a thread is within a collective, or in a backward pass, which may exchange gradients."""
    while frame is not None:
        name = frame.f_code.co_filename.replace(os.sep, "/")
        if is_users(frame.f_code.co_filename):
            return False
        if any(part in name for part in _COLLECTIVE):
            return True
        frame = frame.f_back
    return False


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
def _shown(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
