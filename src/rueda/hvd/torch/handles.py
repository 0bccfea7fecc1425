"""Handles of asynchronous collectives: numbers, as in Horovod, that stand for entries of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from rueda.hvd.core import life
from rueda.hvd.core.engine import Engine
from rueda.hvd.core.entries import Entry

_numbers = itertools.count(1)
_pending: dict[int, tuple[Engine, Entry, Callable[[Any], Any]]] = {}


def launch(entry: Entry, finish: Callable[[Any], Any]) -> int:
    """Submit an entry and give the number that :func:`synchronize` takes."""
    engine = life.engine()
    engine.submit(entry)
    handle = next(_numbers)
    _pending[handle] = (engine, entry, finish)
    return handle


def poll(handle: Any) -> bool:
    """Say whether :func:`synchronize` would return at once."""
    if callable(handle) or handle not in _pending:
        return True
    engine, entry, _ = _pending[handle]
    return engine.poll(entry)


def synchronize(handle: Any) -> Any:
    """Wait for a collective and give its result; None for a handle that was synchronised before.

    Raises:
        HorovodInternalError: the collective failed, on all ranks alike.
    """
    if callable(handle):  # of a sparse tensor
        return handle()
    found = _pending.pop(handle, None)
    if found is None:
        return None
    engine, entry, finish = found
    return finish(engine.wait(entry))


def first_result(results: Any) -> Any:
    """Finish a collective of one tensor."""
    return results[0]


def all_results(results: Any) -> Any:
    """Finish a collective of several tensors."""
    return results
