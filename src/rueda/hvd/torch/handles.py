"""Handles of asynchronous collectives: numbers, as in Horovod, that stand for entries of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import life
from rueda.hvd.core.engine import Engine
from rueda.hvd.core.entries import SUM, Entry, sign

_numbers = itertools.count(1)
_pending: dict[int, tuple[Engine, Entry, Callable[[Any], Any]]] = {}


def make_entry(
    kind: int,
    tensors: Sequence[Tensor],
    process_set: ProcessSet,
    name: str | None,
    *,
    outputs: list[Tensor] | None = None,
    operation: int = SUM,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    extra: Any = None,
) -> Entry:
    """Make an entry of the running engine; without a name it gets one by the order of submission."""
    engine = life.engine()
    number = process_set.process_set_id
    if number is None or engine.rank not in engine.sets.get(number, ()):
        process_set.rank()  # says what is wrong
        raise AssertionError
    full_name = name if name is not None else engine.name(number, kind)
    ready = [(tensor.detach() if tensor.requires_grad else tensor).contiguous() for tensor in tensors]
    signature = sign(kind, ready, operation=operation, root=root, prescale=prescale, postscale=postscale)
    return Entry((number, full_name), signature, ready, outputs, extra)


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
