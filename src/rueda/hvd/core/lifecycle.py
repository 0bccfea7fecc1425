"""The engine of this process: :func:`start`, :func:`engine` and :func:`stop`, any number of times.

The engine uses the world of :mod:`rueda.world`. If the script has opened that world before (by ``rueda.init``, or by a
process group of its own), it is left open when the engine stops; otherwise it is opened and closed with the engine.

A forked process, such as a worker of a data loader, still knows its parent's rank, but has no part in its collectives.
"""

from __future__ import annotations

import atexit
import os
from functools import cache

from rueda.hvd.core.engine import Engine
from rueda.hvd.core.settings import read_settings
from rueda.world import life as world_life
from rueda.world.idle_threads import wait_for_idle_threads

_engine: Engine | None = None
_opened_world = False
_generation = 0


def start() -> Engine:
    """Connect to the other ranks, and start and return the engine, which must not run yet."""
    global _engine, _opened_world, _generation
    opened = not world_life.is_open()
    world = world_life.init()
    store = None
    if world.size > 1:
        import torch.distributed as dist

        # A new process group has a new store, whose keys are unused; in a store that is used again they must be new.
        found = dist.distributed_c10d._get_default_store()
        store = dist.distributed_c10d.PrefixStore(f"hvd/{0 if opened else _generation}", found)
        _generation += 0 if opened else 1
    settings = read_settings(os.environ)
    try:
        _engine = Engine(store, world.rank, world.size, (world.local_rank, world.local_size), settings, world.device)
    except BaseException:
        if opened:
            world_life.finish()
        raise
    _opened_world = opened
    atexit.register(stop)
    _forget_after_fork()
    return _engine


def stop() -> None:
    """Stop the engine if it runs, and close the world if :func:`start` opened it."""
    global _engine
    if _engine is None:
        return
    ended, _engine = _engine, None
    atexit.unregister(stop)
    if ended.forked:
        return
    ended.close()
    if _opened_world:
        world_life.finish()
    else:
        wait_for_idle_threads()


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
