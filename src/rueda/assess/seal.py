"""The seal of a worker's journal, and the watch over what the script must not touch.

The observation runs in the script's own process, since only there are batches and gradients to be seen. Nothing in one
Python process can be hidden from code that wants to find it; but what the usual ways leave can be seen:

- Each line of the journal carries a code that chains it to the lines before (HMAC), with a key that was read, and
  removed, before the script began. A line that somebody else wrote breaks the chain.
- The functions by which the observation is made are compared with those at the start, several times a second and at
  the end; one that was replaced is named.
- Python's audit hook, which cannot be removed, tells when the script asks for other objects' memory or frames, compiles
  code under another file's name, or opens files of the observation.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import is_users, place
from rueda.files.atomic import write_atomically

CODE = "seal"
_FORBIDDEN = (
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._getframe", "sys._current_frames"),
    *("sys.settrace", "sys.setprofile", "sys.addaudithook", "code.__new__", "function.__new__", "os.kill"),
    *("ctypes.dlopen", "ctypes.cdata", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function"),
    *("os.exec", "os.posix_spawn", "os.system"),
)
_HEARD = {*_FORBIDDEN, "compile", "open"}
_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_WATCH_SECONDS = 0.25
_KINDS = (FunctionType, BuiltinFunctionType, MethodType, staticmethod, classmethod, property, type)


class SealedJournal(Journal):
    """A journal whose lines are sealed.

    Args:
        folder: where the journals of all workers are.
        rank: the rank of this worker.
        seal: makes the code of a line, given the name of the file.
    """

    def __init__(self, folder: str | Path, rank: int, seal: Callable[[str, bytes], str]) -> None:
        super().__init__(folder, rank)
        self._seal = seal

    def note(self, kind: str, **values: Any) -> None:
        """Write one observation, with the time, the processor time and the code."""
        caller = sys._getframe(1).f_code.co_filename
        if not caller.startswith(_OURS):
            values = {**values, "forged": caller}
        super().note(kind, **values, at=_clock(), processor=_processor())

    def _encoded(self, values: dict[str, Any], name: str) -> bytes:
        line = super()._encoded(values, name)
        return line[:-2] + f',"{CODE}":"{self._seal(name, line)}"}}\n'.encode()


_clock, _processor = time.time, time.process_time


def sealer(key: bytes) -> Callable[[str, bytes], str]:
    """Return the function that seals the lines of several files, each a chain of its own.

    >>> seal, check = sealer(b"key"), sealer(b"key")
    >>> seal("a", b"1") == check("a", b"1"), seal("a", b"2") == check("a", b"3")
    (True, False)
    """
    last: dict[str, bytes] = {}
    new = hmac.new

    def seal(name: str, line: bytes) -> str:
        before = last.get(name) or name.encode()
        last[name] = new(key, before + line, hashlib.sha256).digest()
        return last[name].hex()[:24]

    return seal


def keep_sealed(folder: Path, keys: dict[int, bytes], *, complete: bool = True) -> str:
    """Leave only sealed lines in the journals of a folder, so that nobody reads others.

    Args:
        folder: the journals.
        keys: the key of each rank.
        complete: whether every rank must have one: not if the job failed, maybe before all had begun.

    Returns:
        what was wrong with them; nothing if every line was in its chain.
    """
    wrong = ""
    for rank, key in keys.items():
        check = sealer(key)
        whole = folder / f"rank-{rank}.jsonl"
        for file in [whole, *sorted(folder.glob(f"rank-{rank}-*.jsonl"))]:
            if file == whole and not complete and not os.path.lexists(file):
                continue
            if file.is_symlink() or not file.is_file():
                wrong = wrong or (f"rank {rank} has no journal" if file == whole else f"{file.name} is no plain file")
                with suppress(OSError):
                    file.unlink()
                continue
            lines = file.read_bytes().splitlines(keepends=True)
            number = next((i for i, line in enumerate(lines) if not _is_sealed(line, file.name, check)), len(lines))
            if number == len(lines):
                continue
            write_atomically(file, b"".join(lines[:number]))
            if number < len(lines) - 1 or lines[number].endswith((b"}", b"\n")):  # else a worker was killed meanwhile
                wrong = wrong or f"line {number + 1} of the journal of rank {rank} was not written by the observation"
    return wrong


def _is_sealed(line: bytes, name: str, check: Callable[[str, bytes], str]) -> bool:
    text, _, code = line.rpartition(f',"{CODE}":"'.encode())
    if not code.endswith(b'"}\n'):
        return False
    return hmac.compare_digest(check(name, text + b"}\n").encode(), code[:-3])


class Guard:
    """Compares what the observation is made of with what it was at the start.

    Args:
        journal: where a change is noted.
        private: folders that the script has no business in.
    """

    def __init__(self, journal: SealedJournal, private: Iterable[Path]) -> None:
        self._journal = journal
        self._private = tuple(os.path.realpath(one) + os.sep for one in private)
        self._known: list[tuple[Any, str, Any, Any]] = []
        self._told: set[str] = set()
        self._hearing: set[int] = set()
        self._active = True

    def start(self, owners: Iterable[Any], is_removed: Callable[[], bool]) -> None:
        """Begin, once the observation is installed: remember every function of some modules and classes.

        Args:
            owners: the modules and classes.
            is_removed: tells whether hooks of the observation are gone.
        """
        self._is_removed = is_removed
        for owner in owners:
            for name, value in list(vars(owner).items()):
                if isinstance(value, _KINDS):
                    self._known.append((owner, name, value, getattr(value, "__code__", None)))
        sys.addaudithook(self._hear)
        self._thread = threading.Thread(target=self._look, name="rueda-assess", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Compare for the last time."""
        if not self._thread.is_alive():
            self._tell("its guard was switched off")
        self.compare()
        self._active = False

    def compare(self) -> None:
        """Note what has been replaced."""
        if self._is_removed():
            self._tell("hooks of the observation were removed")
        for owner, name, value, code in self._known:
            now = vars(owner).get(name)
            same = now is value and getattr(now, "__code__", None) is code
            if not same and not (_is_torchs(owner) and _is_known(now, name)):
                self._tell(f"{_name(owner)}.{name} was replaced")

    def _look(self) -> None:
        while self._active:
            self.compare()
            time.sleep(_WATCH_SECONDS)

    def _hear(self, event: str, args: Any) -> None:
        if not self._active or event not in _HEARD:
            return
        thread = threading.get_ident()
        if thread in self._hearing:  # what the hook itself does, such as asking for a frame
            return
        self._hearing.add(thread)
        try:
            caller = sys._getframe(1).f_code.co_filename
            if is_users(caller) or caller == "<string>":
                self._judge(event, args)
        finally:
            self._hearing.discard(thread)

    def _judge(self, event: str, args: Any) -> None:
        """Judge an event that the script itself has caused."""
        if event in _FORBIDDEN:
            self._tell(f"{event} was called")
        elif event == "compile" and isinstance(args[1], (str, bytes)):
            name = os.fsdecode(args[1])
            if not name.startswith("<") and not is_users(name):
                self._tell(f"code was compiled under the name {name}")
        elif event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            path = os.path.realpath(os.fsdecode(args[0]))
            if path.startswith(self._private) or _is_memory(path):
                self._tell(f"{os.path.basename(path)} of the observation was opened")

    def _tell(self, what: str) -> None:
        if what not in self._told and len(self._told) < 16:
            self._told.add(what)
            self._journal.note("touched", what=what, where=place())


def _is_torchs(owner: Any) -> bool:
    return str(getattr(owner, "__module__", None) or getattr(owner, "__name__", "")).startswith("torch")


def _is_known(function: Any, name: str) -> bool:
    """Return whether a function of torch was replaced by torch, or by the observation that begins or ends there."""
    code = getattr(function, "__code__", None)
    if code is None or is_users(code.co_filename):
        return False
    is_known = code.co_filename.startswith(_OURS) or f"{os.sep}torch{os.sep}" in code.co_filename
    return is_known and getattr(function, "__name__", name) == name


def _is_memory(path: str) -> bool:
    return path.startswith("/proc/") and path.rsplit("/", 1)[-1] in ("mem", "environ", "maps", "fd", "syscall")


def _name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
