"""Remove duplicates from the data of the page's figures: a list or a text that occurs several times is written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

SHORTEST = {list: 8, str: 24}
"""the shortest list and the shortest text that are replaced by a reference"""

_Shared = dict[tuple[type, Any], int]
"""values by type and content: a :class:`~rueda.report.escape.Label` differs from a plain text of the same characters"""


def pack(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Move long lists and texts to ``shared``; ``{"#": 3}`` refers to the fourth. The page's script resolves it.

    >>> pack({"s0": {"x": list(range(8)), "again": list(range(8)), "y": [1, 2]}})
    {'shared': [(0, 1, 2, 3, 4, 5, 6, 7)], 'sections': {'s0': {'x': {'#': 0}, 'again': {'#': 0}, 'y': [1, 2]}}}
    """
    shared: _Shared = {}
    packed = _packed(sections, shared)
    return {"shared": [value for _, value in shared], "sections": packed}


def _packed(value: Any, shared: _Shared) -> Any:
    if is_dataclass(value):
        value = {name: part for name, part in vars(value).items() if part is not None}
    if isinstance(value, Mapping):
        return {name: _packed(part, shared) for name, part in value.items()}
    if isinstance(value, str):
        if len(value) < SHORTEST[str]:
            return value
        return {"#": shared.setdefault((type(value), value), len(shared))}
    if isinstance(value, (list, tuple)):
        if len(value) >= SHORTEST[list] and all(type(part) in (int, float, type(None)) for part in value):
            return {"#": shared.setdefault((list, tuple(value)), len(shared))}
        return [_packed(part, shared) for part in value]
    return value
