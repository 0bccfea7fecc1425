"""Files: rank 0 alone writes them; what another worker writes goes to a private folder, where it finds it again.

The private folder lies over the file system: a file that this worker has written is read from there, any other from
its real place. So a script that saves its best model and loads it at the end does so on every worker. Temporary files,
caches and devices are left alone, since programs that a library starts must find them.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rueda.check.patches import Patches

_WRITING = set("wax+")
_TRACKERS = {"WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": "", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug"}


class PrivateFiles:
    """Redirects the writing of a worker to a private folder.

    Args:
        own: folders whose files are always redirected: the working directory and that of the script.
    """

    def __init__(self, own: list[Path]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rueda-scale-"))
        self._own = [os.path.realpath(one) for one in own]
        home = os.path.expanduser("~")
        places = (tempfile.gettempdir(), sys.prefix, os.path.join(home, ".cache"), "/dev", "/proc", "/sys")
        self._left_alone = tuple(os.path.realpath(place) + os.sep for place in places)
        self._removed: set[str] = set()
        self.held_back: list[str] = []
        """the files that were written here instead of their place"""

    def install(self, patches: Patches) -> None:
        """Replace the functions that write and find files."""
        for owner in (builtins, io):
            patches.replace(owner, "open", self._open)
        patches.replace(torch, "save", self._save)
        for name in ("stat", "lstat"):
            patches.replace(os, name, self._finding)
        for name in ("remove", "unlink"):
            patches.replace(os, name, self._removing)
        patches.replace(os, "mkdir", self._making)
        for name in ("rename", "replace"):
            patches.replace(os, name, self._moving)
        patches.replace(shutil, "rmtree", self._removing_tree)
        for name, value in _TRACKERS.items():
            os.environ[name] = value or str(self._folder / "tracker")
        patches.on_undo(lambda: shutil.rmtree(self._folder, ignore_errors=True))

    # Paths.

    def _private(self, path: Any) -> str | None:
        """Return the place of a file in the private folder; None if it is left alone."""
        try:
            text = os.fsdecode(os.fspath(path))
        except TypeError:
            return None  # a file descriptor
        real = os.path.abspath(text)
        if real.startswith(str(self._folder)):
            return None
        is_own = any(real == own or real.startswith(own + os.sep) for own in self._own)
        if not is_own and (real + os.sep).startswith(self._left_alone):
            return None
        return str(self._folder) + real

    def _found(self, path: Any) -> Any:
        """Return where a file is read from."""
        private = self._private(path)
        if private is None:
            return path
        return private if private in self._removed or _exists(private) else path

    def _for_writing(self, path: Any, *, keeps: bool) -> Any:
        """Return where a file is written; with ``keeps``, its present contents are copied there first."""
        private = self._private(path)
        if private is None:
            return path
        _make_folder(os.path.dirname(private))
        text = os.fsdecode(os.fspath(path))
        if keeps and not _exists(private) and private not in self._removed and os.path.isfile(text):
            shutil.copyfile(text, private)
        self._removed.discard(private)
        if text not in self.held_back:
            self.held_back.append(text)
        return private

    # Functions.

    def _open(self, original: Any) -> Any:
        def open(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if options.get("opener") is not None:  # which opens another file than the one that is named
                return original(file, mode, *args, **options)
            if _WRITING & set(mode):
                return original(self._for_writing(file, keeps="w" not in mode), mode, *args, **options)
            return original(self._found(file), mode, *args, **options)

        return open

    def _save(self, original: Any) -> Any:
        def save(thing: Any, f: Any, *args: Any, **options: Any) -> None:
            is_path = isinstance(f, (str, os.PathLike))
            original(thing, self._for_writing(f, keeps=False) if is_path else f, *args, **options)

        return save

    def _finding(self, original: Any) -> Any:
        def find(path: Any, *args: Any, **options: Any) -> Any:
            return original(self._found(path) if not options.get("dir_fd") else path, *args, **options)

        return find

    def _removing(self, original: Any) -> Any:
        def remove(path: Any, *args: Any, **options: Any) -> None:
            private = self._private(path)
            if private is None or options.get("dir_fd") is not None:
                original(path, *args, **options)
                return
            if _exists(private):
                original(private)
            self._removed.add(private)

        return remove

    def _removing_tree(self, original: Any) -> Any:
        def rmtree(path: Any, *args: Any, **options: Any) -> None:
            private = self._private(path)
            if private is None:
                original(path, *args, **options)
            else:
                original(private, ignore_errors=True)
                self._removed.add(private)

        return rmtree

    def _making(self, original: Any) -> Any:
        def mkdir(path: Any, *args: Any, **options: Any) -> None:
            private = self._private(path)
            if private is None or options.get("dir_fd") is not None:
                original(path, *args, **options)
                return
            _make_folder(os.path.dirname(private))
            original(private, *args, **options)
            self._removed.discard(private)

        return mkdir

    def _moving(self, original: Any) -> Any:
        def move(source: Any, target: Any, *args: Any, **options: Any) -> None:
            place, goal = self._private(source), self._private(target)
            if place is None or goal is None:
                original(source, target, *args, **options)
                return
            if not _exists(place):
                self._for_writing(source, keeps=True)
            original(place, self._for_writing(target, keeps=False))
            self._removed.add(place)

        return move


_stat, _mkdir = os.stat, os.mkdir  # the real ones


def _exists(path: str) -> bool:
    with suppress(OSError, ValueError):
        _stat(path)
        return True
    return False


def _make_folder(path: str) -> None:
    if not _exists(path):
        _make_folder(os.path.dirname(path))
        with suppress(FileExistsError):
            _mkdir(path)
