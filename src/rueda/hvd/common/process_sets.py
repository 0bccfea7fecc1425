"""Process sets: collectives among some of the ranks.

All ranks register a process set together. Then its members pass it as ``process_set=`` to any collective, while the
other ranks continue::

    even = hvd.add_process_set([0, 2])
    if even.included():
        hvd.allreduce(tensor, process_set=even)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.hvd.core import lifecycle
from rueda.hvd.core.entries import ADD_SET, REMOVE_SET, Entry, signature_of
from rueda.world.elastic import is_elastic


def _ranks_of(ranks_or_comm: Any) -> list[int]:
    if hasattr(ranks_or_comm, "Get_size"):
        ranks: list[int] = ranks_or_comm.allgather(lifecycle.engine().rank)
        return ranks
    return [int(rank) for rank in ranks_or_comm]


class ProcessSet:
    """A set of ranks; :func:`add_process_set` registers it.

    Args:
        ranks_or_comm: the ranks, or an mpi4py communicator over them.

    >>> ProcessSet([2, 0])
    ProcessSet(process_set_id=None, ranks=[0, 2])
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        ranks = _ranks_of(ranks_or_comm)
        if len(set(ranks)) < len(ranks):
            raise ValueError(f"a process set: expected distinct ranks, got {ranks}; list each once")
        self._ranks = sorted(ranks)
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None

    @property
    def ranks(self) -> list[int] | None:
        """The ranks in ascending order; None for the set of all ranks before ``hvd.init``."""
        if self.process_set_id != 0:
            return self._ranks
        running = lifecycle.running()
        return None if running is None else list(running.sets[0])

    def members(self) -> tuple[int, ...]:
        """Return the ranks of this set, which must be registered."""
        if self.process_set_id is None:
            raise ValueError(f"{self}: expected a registered set; call hvd.add_process_set, or give it to hvd.init")
        members = lifecycle.engine().sets.get(self.process_set_id)
        if members is None:
            raise ValueError(f"{self}: expected a registered set, but it was removed")
        return members

    def size(self) -> int:
        """Return the number of ranks in the set."""
        return len(self.members())

    def rank(self) -> int:
        """Return the rank of this worker within the set."""
        members = self.members()
        own = lifecycle.engine().rank
        if own not in members:
            raise ValueError(f"{self}: rank {own} is not in it; ask included() first")
        return members.index(own)

    def included(self) -> bool:
        """Return whether this worker is in the set."""
        return lifecycle.engine().rank in self.members()

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


def may_exchange(process_set: ProcessSet) -> bool:
    """Return whether this worker exchanges anything in a process set, now or later.

    In an elastic job a worker that is alone may get company. What is decided once, such as the operations of a
    compiled function, must not depend on the present number of workers there.
    """
    return process_set.included() and (process_set.size() > 1 or is_elastic())


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set; all ranks must call this with the same ranks.

    Raises:
        ValueError: a rank does not exist, or a set of these ranks is registered already.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    engine = lifecycle.engine()
    ranks = tuple(process_set.ranks or ())
    if process_set.process_set_id is not None or ranks in engine.sets.values():
        raise ValueError(f"{process_set}: expected a new set, but these ranks are registered; use that set")
    if not ranks or not 0 <= ranks[0] <= ranks[-1] < engine.size:
        raise ValueError(f"{process_set}: expected ranks from 0 to {engine.size - 1}, at least one")
    process_set.process_set_id = _run(ADD_SET, ranks)
    _registered.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregister a process set on all ranks; return False if it contains all ranks or is not registered."""
    sets = lifecycle.engine().sets
    number = process_set.process_set_id
    if number in (None, 0) or number not in sets:
        return False
    _run(REMOVE_SET, sets[number])
    process_set.process_set_id = None
    if process_set in _registered:
        _registered.remove(process_set)
    return True


def _run(kind: int, ranks: tuple[int, ...]) -> Any:
    engine = lifecycle.engine()
    return engine.run(Entry(0, engine.tensor_queue.default_name(0, kind), signature_of(kind, ranks=ranks), []))


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of each registered process set by its id."""
    return {number: list(ranks) for number, ranks in lifecycle.engine().sets.items()}


def is_process_set_included(process_set_id: int = 0) -> bool:
    """Return whether this worker is in the process set with this id."""
    engine = lifecycle.engine()
    return engine.rank in engine.sets.get(process_set_id, ())


def forget() -> None:
    """Mark all process sets as not registered, because the engine is about to stop."""
    for process_set in _registered:
        process_set.process_set_id = None
    _registered.clear()
