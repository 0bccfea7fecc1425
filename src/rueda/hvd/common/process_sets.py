"""Process sets: collectives among some of the ranks.

A set is made and registered on all ranks alike; then its members pass ``process_set=`` to any collective, and the
others go on undisturbed::

    even = hvd.add_process_set([0, 2])
    if even.included():
        hvd.allreduce(tensor, process_set=even)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.hvd.core import life
from rueda.hvd.core.entries import ADD_SET, REMOVE_SET, Entry, sign


def _ranks_of(ranks_or_comm: Any) -> list[int]:
    if hasattr(ranks_or_comm, "Get_size"):
        ranks: list[int] = ranks_or_comm.allgather(life.engine().rank)
        return ranks
    return [int(rank) for rank in ranks_or_comm]


class ProcessSet:
    """Some of the ranks.

    Args:
        ranks_or_comm: their numbers among all workers, or an mpi4py communicator over them.

    >>> ProcessSet([2, 0])
    ProcessSet(process_set_id=None, ranks=[0, 2])
    """

    process_set_id: int | None

    def __init__(self, ranks_or_comm: Any) -> None:
        ranks = _ranks_of(ranks_or_comm)
        if len(set(ranks)) < len(ranks):
            raise ValueError(f"a process set: expected different ranks, got {ranks}; name each once")
        self._ranks: list[int] | None = sorted(ranks)
        self.process_set_id = None
        self.mpi_comm: Any = None

    @property
    def ranks(self) -> list[int] | None:
        """The ranks, in order."""
        return self._ranks

    def _id(self) -> int:
        if self.process_set_id is None:
            raise ValueError(f"{self}: expected a registered set; call hvd.add_process_set, or give it to hvd.init")
        return self.process_set_id

    def members(self) -> tuple[int, ...]:
        """Give the ranks as the running world knows them."""
        sets = life.engine().sets
        number = self._id()
        if number not in sets:
            raise ValueError(f"{self}: expected a registered set, but it was removed")
        return sets[number]

    def size(self) -> int:
        """Count the ranks."""
        return len(self.members())

    def rank(self) -> int:
        """Give this worker's number within the set."""
        members = self.members()
        own = life.engine().rank
        if own not in members:
            raise ValueError(f"{self}: rank {own} is not in it; ask included() first")
        return members.index(own)

    def included(self) -> bool:
        """Say whether this worker is in the set."""
        return life.engine().rank in self.members()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and (self.process_set_id, self._ranks) == (
            other.process_set_id,
            other._ranks,
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self._ranks})"


class _GlobalProcessSet(ProcessSet):
    """All ranks, known to be registered from the start."""

    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int] | None:
        running = life.running()
        return list(range(running.size)) if running is not None else None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id=0, ranks={self.ranks})"


global_process_set: ProcessSet = _GlobalProcessSet()
_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set; all ranks of the world must call this with the same ranks.

    Raises:
        ValueError: a rank that does not exist, or a set that is registered already.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    engine = life.engine()
    ranks = process_set.ranks or []
    if process_set.process_set_id is not None or tuple(ranks) in engine.sets.values():
        raise ValueError(f"{process_set}: expected a new set, but these ranks are registered; use that set")
    if not ranks or not 0 <= ranks[0] <= ranks[-1] < engine.size:
        raise ValueError(f"{process_set}: expected ranks from 0 to {engine.size - 1}, at least one")
    entry = Entry(0, engine.ledger.name(0, ADD_SET), sign(ADD_SET, ranks=tuple(ranks)), [])
    process_set.process_set_id = engine.run(entry)
    _registered.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregister a set, on all ranks; False for the set of all ranks and for one that is not registered."""
    engine = life.engine()
    number = process_set.process_set_id
    if number in (None, 0) or number not in engine.sets:
        return False
    engine.run(Entry(0, engine.ledger.name(0, REMOVE_SET), sign(REMOVE_SET, ranks=engine.sets[number]), []))
    process_set.process_set_id = None
    if process_set in _registered:
        _registered.remove(process_set)
    return True


def process_set_ids_and_ranks() -> dict[int, list[int]]:
    """List the registered sets: the ranks of each, by its number."""
    return {number: list(ranks) for number, ranks in life.engine().sets.items()}


get_process_set_ids_and_ranks = process_set_ids_and_ranks


def is_process_set_included(process_set_id: int = 0) -> bool:
    """Say whether this worker is in a set, by the set's number."""
    engine = life.engine()
    return engine.rank in engine.sets.get(process_set_id, ())


def forget() -> None:
    """Unregister all sets without a word to others: the world has ended."""
    for process_set in _registered:
        process_set.process_set_id = None
    _registered.clear()
