"""Whether the present world is broken, and how the collectives of a broken world are made to fail.

A world is broken when a member is gone, or does not answer. Every survivor learns it from the driver, through its agent
(:mod:`.link`), or from the watcher of stalls. Then collectives that are under way, which may wait for ever for a host
that is cut off, must end with an error:

- those of Gloo, because their connections are shut down (:mod:`.sockets`);
- those in shared memory, because they look at :func:`error` while they wait;
- those of NCCL, because their communicators are aborted;
- those of other parts of the program, by functions that are registered with :func:`on_break`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

from rueda.errors import PeerLost
from rueda.world.elastic import sockets

Undo = Callable[[], None]

_reason: str | None = None
_lock = threading.Lock()
_breakers: list[Callable[[str], object]] = []
_leavers: list[Callable[[bool], object]] = []


def error() -> PeerLost | None:
    """Return the error that collectives of the present world end with, or None while it is whole."""
    reason = _reason
    return None if reason is None else PeerLost(reason)


def raise_if_broken() -> None:
    """Raise :class:`PeerLost` if the present world is broken."""
    found = error()
    if found is not None:
        raise found


def break_world(reason: str) -> None:
    """Make all collectives of the present world fail, in any thread; later calls do nothing until the next world."""
    global _reason
    with _lock:
        if _reason is not None:
            return
        _reason = reason
    for breaker in list(_breakers):
        with contextlib.suppress(Exception):  # the others must still be called
            breaker(reason)
    sockets.shut_down()
    _abort_accelerators()


def _abort_accelerators() -> None:
    """Abort the process groups of NCCL and its kind, which have an operation for it."""
    groups = sys.modules.get("torch.distributed.distributed_c10d")
    if groups is None:
        return
    for group in list(groups._world.pg_names):
        for device in ("cuda", "xpu"):
            with contextlib.suppress(Exception):  # the group has no such backend, or is gone
                group._get_backend(sys.modules["torch"].device(device)).abort()


def mend() -> None:
    """Begin a new world, which is whole."""
    global _reason
    with _lock:
        _reason = None


def on_break(function: Callable[[str], object]) -> Undo:
    """Call a function, in another thread, when the world breaks; it must make this part's waiting collectives fail.

    Args:
        function: gets the reason.

    Returns:
        a function that undoes this call.
    """
    _breakers.append(function)
    return lambda: _breakers.remove(function) if function in _breakers else None


def on_leave(function: Callable[[bool], object]) -> Undo:
    """Call a function when this worker leaves its world in order to open the next one, before its groups are closed.

    Args:
        function: gets whether the world failed; it must not wait for the other workers then.

    Returns:
        a function that undoes this call.
    """
    _leavers.append(function)
    return lambda: _leavers.remove(function) if function in _leavers else None


def leaving(failed: bool) -> None:
    """Call the functions of :func:`on_leave`, the last one first."""
    for leaver in reversed(list(_leavers)):
        try:
            leaver(failed)
        except Exception:
            if not failed:
                raise
