"""Methods of :class:`rueda.World` whose code is in a folder that itself depends on this one.

The package says where they are (``rueda/__init__.py``), so that the world depends on nothing above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_found_by: dict[str, Callable[[], Callable[..., Any]]] = {}


def provide(name: str, find: Callable[[], Callable[..., Any]]) -> None:
    """State how the function behind a method is found; ``find`` is called when the method is, and may import."""
    _found_by[name] = find


def provided(name: str) -> Callable[..., Any]:
    """Return the function behind a method.

    >>> provide("greet", lambda: "hello, {}".format)
    >>> provided("greet")("world")
    'hello, world'
    """
    return _found_by[name]()
