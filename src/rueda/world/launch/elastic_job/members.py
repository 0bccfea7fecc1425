"""The members of an elastic job, as the driver knows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rueda.world.launch.elastic_job.hosts_state import HostState
from rueda.world.launch.elastic_job.placement import Candidate


@dataclass(eq=False)
class Member:
    """A process of the job.

    Args:
        number: its number in the job, which no other process ever has.
        host: where it runs.
        slot: its number on that host.
        shown_rank: the rank under which its lines are shown.
        rank: its rank in the present generation; None if it is not in it.
    """

    number: int
    host: HostState
    slot: int
    shown_rank: int
    rank: int | None = None
    registered: bool = False
    """whether it can survive a failure of others"""
    joined: bool = False
    """whether it is a fresh process that waits to be let in"""
    arrived: bool = False
    """whether it waits for the next generation"""
    announced: bool = False
    """whether the others know that it waits"""
    ended: bool = False
    expected: bool = False
    """whether the driver itself ends it"""
    kill_at: float | None = None
    failing: float | None = None
    """when it said that an exception ends it"""
    error: str | None = None
    """the last line of the exception that ends it"""
    final: bool = False
    """whether a fresh process would fail in the same way"""
    step: int | None = None

    @property
    def active(self) -> bool:
        """Whether it is in the present generation and runs."""
        return self.rank is not None and not self.ended

    @property
    def pending(self) -> bool:
        """Whether it runs, and is in no generation."""
        return self.rank is None and not self.ended and not self.expected

    def candidate(self) -> Candidate:
        """Return it as a candidate of the next generation."""
        return Candidate(number=self.number, host=self.host.name, slot=self.slot, rank=self.rank)


class Members:
    """All processes that the job has started."""

    def __init__(self) -> None:
        self._all: dict[int, Member] = {}

    def add(self, host: HostState, slot: int, shown_rank: int) -> Member:
        """Add a process that is being started."""
        member = Member(len(self._all), host, slot, shown_rank)
        self._all[member.number] = member
        return member

    def __getitem__(self, number: int) -> Member:
        return self._all[number]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._all.values())

    def shown_rank(self, number: int) -> int:
        """Return the rank under which the lines of a member are shown."""
        return self._all[number].shown_rank if number in self._all else number

    def active(self) -> list[Member]:
        """Return those of the present generation that run, in rank order."""
        return sorted((one for one in self if one.active), key=lambda one: one.rank or 0)

    def pending(self) -> list[Member]:
        """Return the fresh processes that are in no generation yet."""
        return [one for one in self if one.pending]

    def alive(self, host: HostState | None = None) -> list[Member]:
        """Return all that run, on one host or anywhere."""
        return [one for one in self if not one.ended and (host is None or one.host is host)]


def by_host(members: Iterable[Member]) -> dict[HostState, list[Member]]:
    """Group members by their host."""
    found: dict[HostState, list[Member]] = {}
    for one in members:
        found.setdefault(one.host, []).append(one)
    return found
