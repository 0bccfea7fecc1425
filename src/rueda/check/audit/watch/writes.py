"""Files that are written, addresses that are fetched, and experiment trackers that are started."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import Counter
from typing import Any

import torch

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import main_place, place
from rueda.check.patches import Patches

_MOST = 2000  # notes of each kind
_WRITING = os.O_WRONLY | os.O_RDWR


class WriteWatch:
    """Notes the files that this worker writes.

    Args:
        journal: where they are noted.
        counters: what has happened so far.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self._journal, self._counters = journal, counters
        self._noted: Counter[str] = Counter()
        self._noting: set[int] = set()  # threads that are in the hook, in which it takes no part
        self._active = True
        # Found once: the hook is called while Python holds its own locks, such as that of tempfile.
        self._temporary = tempfile.gettempdir() + os.sep
        home = os.path.expanduser("~")
        apart = ["/dev", "/proc", "/sys", os.path.join(home, ".cache"), sys.prefix, sys.base_prefix]
        self._apart = tuple(os.path.realpath(one) + os.sep for one in (*apart, str(journal.folder)))

    def install(self, patches: Patches) -> None:
        """Listen to Python's audit events, and replace ``torch.save``, whose files Python does not open."""
        sys.addaudithook(self._hear)
        patches.replace(torch, "save", self._saving)
        patches.on_undo(self._end)
        self._journal.on_finish(self._finish)

    def _end(self) -> None:
        self._active = False  # an audit hook cannot be removed

    def _hear(self, event: str, args: Any) -> None:
        if not self._active or event not in ("open", "os.rename", "urllib.Request"):
            return
        thread = threading.get_ident()
        if thread in self._noting:
            return
        self._noting.add(thread)
        try:
            with self._journal.careful:
                if event == "urllib.Request":
                    self._note("request", address=str(args[0]))
                elif event == "os.rename" and not self._is_apart(_real(args[0])):
                    self._note("rename", source=_real(args[0]), target=_real(args[1]))
                elif event == "open" and isinstance(args[2], int):
                    self._note_file(args[0], "open" if args[2] & _WRITING else "read")
        finally:
            self._noting.discard(thread)

    def _note_file(self, path: Any, how: str = "open") -> None:
        if how == "read" and self._noted["read"] >= _MOST:
            return  # a loader may open a file for each example: nothing is looked up for it any more
        real = _real(path)
        if self._is_apart(real):
            return
        if how != "read":
            counters = self._counters
            self._note("write", path=real, how=how, exchanges=counters.collectives + counters.other_collectives)
        elif not real.endswith((".py", ".so")):
            self._note("read", path=real)

    def _is_apart(self, path: str) -> bool:
        """Return whether a file is a library's own affair: a lock, compiled code, a folder of torch's compiler."""
        if not path or (path + os.sep).startswith(self._apart):
            return True
        temporary = tuple(self._temporary + name for name in ("torchinductor", "triton", "tmp"))
        return path.endswith((".lock", ".pyc")) or path.startswith(temporary) or os.path.isdir(path)  # O_TMPFILE

    def _note(self, kind: str, **values: Any) -> None:
        if self._noted[kind] < _MOST:
            self._noted[kind] += 1
            self._journal.note(kind, where=place() or main_place()[0], **values)

    def _saving(self, original: Any) -> Any:
        def save(obj: Any, f: Any, *args: Any, **options: Any) -> Any:  # torch's names, by which they may be given
            if isinstance(f, (str, os.PathLike)):
                with self._journal.careful:
                    self._note_file(f, "torch.save")
            return original(obj, f, *args, **options)

        return save

    def _finish(self) -> None:
        """Note the runs of experiment trackers that are active."""
        wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
        if wandb is not None and getattr(wandb, "run", None) is not None:
            self._journal.note("tracker", name="W&B", where="")
        if mlflow is not None and hasattr(mlflow, "active_run") and mlflow.active_run() is not None:
            self._journal.note("tracker", name="MLflow", where="")


def _real(path: Any) -> str:
    try:
        text = os.fsdecode(os.fspath(path))
    except (TypeError, ValueError):
        return ""  # a file descriptor
    return "" if text.startswith("/proc/") else os.path.realpath(text)  # which may lead to a file in memory
