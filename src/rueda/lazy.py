"""Import the names of a package on first use, so that ``import rueda`` and ``rueda --help`` do not load torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package from the module that defines each name.

    A name that equals its module stands for the module itself.

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
        module = import_module(f"{package}.{homes[name]}")
        value = module if name == homes[name] else getattr(module, name)
        setattr(sys.modules[package], name, value)  # the next lookup does not call this function
        return value

    return find
