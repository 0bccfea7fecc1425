"""The life of the engine of this process: :func:`start`, :func:`engine`, :func:`stop`, any number of times.

The engine stands on the world of :mod:`rueda.world`. A world that was there before (the script called ``rueda.init`` or
made its own process group) is used and left as it is; otherwise the engine's life is the world's.
"""

from __future__ import annotations

import atexit
import os
import socket
from typing import TYPE_CHECKING

from rueda.hvd.core.engine import Engine
from rueda.hvd.core.settings import read_settings
from rueda.world import life as world_life
from rueda.world.idle_threads import wait_for_idle_threads

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_engine: Engine | None = None
_opened_world = False
_generation = 0


def start(store: Store | None = None) -> Engine:
    """Meet the other ranks and start the engine; called again, it gives the one that runs.

    Args:
        store: where the ranks find each other, empty and known to all of them; by default a corner of the world's own.
            Whoever re-forms a world from survivors gives a new one.
    """
    global _engine, _opened_world, _generation
    if _engine is not None:
        return _engine
    opened = not world_life.is_open()
    world = world_life.init()
    if store is None and world.size > 1:
        import torch.distributed as dist

        # A process group that is new starts with a store that is new: both count from zero then.
        found = dist.distributed_c10d._get_default_store()
        store = dist.distributed_c10d.PrefixStore(f"hvd/{0 if opened else _generation}", found)
        _generation += 0 if opened else 1
    about = {"host": socket.gethostname(), "local_rank": world.local_rank, "local_size": world.local_size}
    try:
        _engine = Engine(store, world.rank, world.size, about, read_settings(os.environ))
    except BaseException:
        if opened:
            world_life.finish()
        raise
    _opened_world = opened
    atexit.register(stop)
    return _engine


def stop() -> None:
    """End the engine, and the world if it was opened for it; safe at any time, any number of times."""
    global _engine
    if _engine is None:
        return
    ended, _engine = _engine, None
    atexit.unregister(stop)
    ended.close()
    if _opened_world:
        world_life.finish()
    else:
        wait_for_idle_threads()


def running() -> Engine | None:
    """Give the engine, or None."""
    return _engine


def engine() -> Engine:
    """Give the engine.

    Raises:
        ValueError: it does not run (Horovod raises the same type).
    """
    if _engine is None:
        raise ValueError("hvd: expected an initialised world, got none; call hvd.init() first")
    return _engine
