"""Attributes of modules and classes that are replaced while a script runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


class Patches:
    """Replaces attributes and remembers how to restore them.

    >>> import math
    >>> patches = Patches()
    >>> patches.replace(math, "floor", lambda original: lambda x: original(x) + 100)
    >>> math.floor(1.5), patches.undo(), math.floor(1.5)
    (101, None, 1)
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what ``make`` returns for the original one."""
        inherited = isinstance(owner, type) and name not in vars(owner)
        original = getattr(owner, name)
        new = make(original)
        if isinstance(new, FunctionType):
            functools.update_wrapper(new, original)  # libraries look at the signature, as Lightning at DataLoader's
            vars(new)["__prepare_scriptable__"] = lambda: original  # what torch.jit.script compiles instead
        setattr(owner, name, new)
        self._undo.append((lambda: delattr(owner, name)) if inherited else (lambda: setattr(owner, name, original)))

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Call a function when the patches are undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Restore everything, the last first."""
        while self._undo:
            self._undo.pop()()
