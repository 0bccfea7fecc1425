"""Names that are imported when they are first used, so that ``import rueda`` and ``rueda --help`` load no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package: from a name to the module of the package that defines it.

    >>> __getattr__ = lazily("rueda", {"Recipe": "records"})
    >>> __getattr__("Recipe").__name__
    'Recipe'
    >>> __getattr__("Wheel")
    Traceback (most recent call last):
    AttributeError: module 'rueda' has no attribute 'Wheel'
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # found once, it is found at once
        return value

    return find
