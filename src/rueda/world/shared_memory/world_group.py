"""The group of all workers of the open world, for the collectives of :class:`rueda.World`.

:func:`rueda.init` connects it, since all ranks are there at that time. Its collectives are not in torch's flight
recorder, so the watcher of stalls is told of them (:class:`SharedCollectives`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from rueda.world.shared_memory.group import SharedGroup
from rueda.world.shared_memory.reducing_group import ReducingGroup
from rueda.world.shared_memory.transport import connect_group, wanted
from rueda.world.shared_memory.waiting import Check
from rueda.world.stall.limits import DUMP, StallLimits
from rueda.world.stall.waits import Key, Wait

_current: ReducingGroup | None = None


def open_group(store: Store, rank: int, size: int, seconds: float, check: Check) -> ReducingGroup | None:
    """Connect the group of all workers, or return None if they use Gloo.

    They also use Gloo if torch's flight recorders are to be written at a stall (``--stall-dump``), unless shared memory
    is asked for: the recorders know only what goes through torch.
    """
    global _current
    if os.environ.get(DUMP) and not wanted(os.environ):
        return None
    _current = connect_group(PrefixStore("shared", store), rank, size, timedelta(seconds=seconds), check)
    return _current


def close_group() -> None:
    """Leave the group, if there is one."""
    global _current
    closed, _current = _current, None
    if closed is not None:
        closed.shutdown()


def world_group() -> ReducingGroup | None:
    """Return the group of all workers, for reductions; None if they use Gloo."""
    return _current


def copying_group() -> SharedGroup | None:
    """Return the group of all workers, for all collectives; None if they use Gloo for those that only copy."""
    return _current if isinstance(_current, SharedGroup) else None


class SharedCollectives:
    """What this worker waits for in shared memory, for the watcher of stalls.

    Args:
        group: the group.
        limits: the warning time and the timeout.
        give_up: ends this process.
    """

    ends_busy = True

    def __init__(self, group: ReducingGroup, limits: StallLimits, give_up: Callable[[str], None]) -> None:
        self.limits = limits
        self.give_up = give_up
        self._group = group

    def waits(self) -> list[Wait]:
        """Return the collective that is under way, if this rank waits in it."""
        found = self._group.waits_for()
        if found is None:
            return []
        what, number, since = found
        return [Wait(what=what, since=since, key=["shared", number])]

    def reached(self, key: Key) -> bool | None:
        """Return whether this rank has begun the collective of this number."""
        return self._group.num_operations >= key[1] if key[0] == "shared" else None
