"""Handles of asynchronous collectives: as in Horovod, a handle is an integer; it refers to an entry of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from rueda.hvd.core import lifecycle
from rueda.hvd.core.engine import Engine
from rueda.hvd.core.entries import Entry
from rueda.hvd.torch.collective_entries import first

_numbers = itertools.count(1)
_pending: dict[int, tuple[Engine, Entry, Callable[[Any], Any] | None]] = {}


def submit(entry: Entry, finish: Callable[[Any], Any] | None = None) -> int:
    """Submit an entry to the engine and return its handle.

    Args:
        entry: the collective to run.
        finish: turns the list of results into what :func:`synchronize` returns; None returns the list itself.
    """
    engine = lifecycle.engine()
    engine.submit(entry)
    return keep(engine, entry, finish)


def keep(engine: Engine, entry: Entry, finish: Callable[[Any], Any] | None = first) -> int:
    """Return the handle of an entry that was submitted; ``finish`` is that of :func:`submit`."""
    handle = next(_numbers)
    _pending[handle] = (engine, entry, finish)
    return handle


def poll(handle: Any) -> bool:
    """Return whether :func:`synchronize` would return without blocking."""
    if callable(handle) or handle not in _pending:
        return True
    engine, entry, _ = _pending[handle]
    return engine.poll(entry)


def synchronize(handle: Any) -> Any:
    """Block until a collective has finished and return its result, or None if the handle was synchronized before.

    Raises:
        HorovodInternalError: the collective failed, on all ranks.
    """
    if callable(handle):  # the handle of a sparse all-reduce is a function
        return handle()
    found = _pending.pop(handle, None)
    if found is None:
        return None
    engine, entry, finish = found
    results = engine.wait(entry)
    return results if finish is None else finish(results)
