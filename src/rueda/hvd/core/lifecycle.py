"""The engine of this process: :func:`start`, :func:`engine` and :func:`stop`, any number of times.

The engine uses the world of :mod:`rueda.world`. If the script has opened that world before (by ``rueda.init``, or by a
process group of its own), it is left open when the engine stops; otherwise it is opened and closed with the engine.

In an elastic job :func:`reform` takes the engine from one world to the next (:mod:`rueda.world.elastic`): when a worker
is lost, the collectives of the others fail, and they start a new engine in the world of those that are left.

A forked process, such as a worker of a data loader, still knows its parent's rank, but has no part in its collectives.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import cache

from rueda.errors import WorldError
from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.engine import Engine
from rueda.hvd.core.prelude import of_this_process
from rueda.hvd.core.settings import read_settings
from rueda.world import elastic
from rueda.world import life as world_life
from rueda.world.elastic import broken
from rueda.world.idle_threads import wait_for_idle_threads
from rueda.world.world import World

_engine: Engine | None = None
_opened_world = False
_generation = 0
_unwatch_breaks: Callable[[], None] | None = None


def start() -> Engine:
    """Connect to the other ranks, and start and return the engine, which must not run yet."""
    opened = not world_life.is_open()
    world = world_life.init()
    try:
        return _start(world, opened=opened)
    except BaseException:
        if opened:
            world_life.finish()
        raise


def _start(world: World, *, opened: bool) -> Engine:
    """Start the engine in a world; ``opened``: which is closed with it."""
    global _engine, _opened_world, _generation, _unwatch_breaks
    store = None
    if world.size > 1:
        import torch.distributed as dist

        # A new process group has a new store, whose keys are unused; in a store that is used again they must be new.
        found = dist.distributed_c10d._get_default_store()
        store = dist.distributed_c10d.PrefixStore(f"hvd/{0 if opened else _generation}", found)
        _generation += 0 if opened else 1
    settings = read_settings(os.environ)
    placement = (world.local_rank, world.local_size)
    prelude = of_this_process() if elastic.is_elastic() else None
    _engine = Engine(store, world.rank, world.size, placement, settings, world.device, prelude)
    _opened_world = opened
    if elastic.is_elastic():
        elastic.announce()
        _unwatch_breaks = elastic.on_break(_engine.abort)
        if (lost := broken.error()) is not None:  # just before
            _engine.abort(str(lost))
    atexit.register(stop)
    _forget_after_fork()
    return _engine


def stop() -> None:
    """Stop the engine if it runs, and close the world if :func:`start` opened it."""
    if _close(failed=False):
        if _opened_world:
            world_life.finish()
        else:
            wait_for_idle_threads()


def _close(failed: bool) -> bool:
    """Stop the engine, if it runs, and return whether it did; a failed one does not wait for the other ranks."""
    global _engine, _unwatch_breaks
    if _engine is None:
        return False
    ended, _engine = _engine, None
    atexit.unregister(stop)
    if ended.forked:
        return False
    if _unwatch_breaks is not None:
        _unwatch_breaks()
        _unwatch_breaks = None
    if failed:
        ended.abort("this worker has left a broken world")
    ended.close()
    return True


def reform(*, failed: bool) -> Engine:
    """Leave the world of this elastic job, and start the engine in the next one; again, if a rank is lost meanwhile.

    Args:
        failed: whether a collective failed; False if hosts have changed, which all ranks have agreed on.

    Raises:
        WorldError: the job gives up.
    """
    global _generation
    opened = _opened_world
    while True:
        forget = elastic.on_leave(_close)
        try:
            world = elastic.reform(failed=failed)
        finally:
            forget()
        _generation = 0  # as in a fresh process: the store of the new world is new
        try:
            return _start(world, opened=opened)
        except (WorldError, HorovodInternalError, OSError):
            failed = True  # in which case the launcher learns that this worker has not entered the world


@cache
def _forget_after_fork() -> None:
    """Register what a forked process does, once in the life of this process."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    atexit.unregister(stop)
    if _engine is not None:
        _engine.after_fork()


def running() -> Engine | None:
    """Return the engine, or None if it does not run."""
    return _engine


def engine() -> Engine:
    """Return the running engine.

    Raises:
        ValueError: it does not run (Horovod raises the same type).
    """
    if _engine is None:
        raise ValueError("hvd: expected an initialised world, got none; call hvd.init() first")
    return _engine
