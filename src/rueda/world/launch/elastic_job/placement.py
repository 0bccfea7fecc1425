"""Which member of an elastic job gets which rank.

A member keeps its *slot*, its number on its host, for life: the slot chooses its GPU, and is its local rank unless a
slot below it is empty. Ranks follow the hosts, as in any job, and within a host those that were in the former
generation come first, in their former order. So rank 0 is a survivor, if there is one, and can give its state to fresh
processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A process that can be in the next generation.

    Args:
        number: the number of the member.
        host: the name of its host.
        slot: its number on that host.
        rank: its rank in the present generation; None for a fresh process.
    """

    number: int
    host: str
    slot: int
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The place of a member in a generation; ``node`` is the number of its host in it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int

    def variables(self) -> dict[str, str]:
        """Return the variables that torchrun sets for such a place."""
        return {
            "RANK": str(self.rank), "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank), "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.node), "GROUP_WORLD_SIZE": str(self.nodes),
            "ROLE_RANK": str(self.rank), "ROLE_WORLD_SIZE": str(self.size), "ROLE_NAME": "default",
        }  # fmt: skip


def place(candidates: Iterable[Candidate], host_order: Sequence[str]) -> dict[int, Seat]:
    """Give every candidate a rank.

    Args:
        candidates: the members of the generation.
        host_order: the hosts in the order in which they came; those with survivors go first.

    Returns:
        the seats by the number of the member.

    Rank 0 and the process in slot 0 of host a were lost; a fresh process takes its slot:

    >>> old = [Candidate(number=1, host="a", slot=1, rank=1), Candidate(number=2, host="b", slot=0, rank=2)]
    >>> seats = place([*old, Candidate(number=3, host="a", slot=0)], ["a", "b"])
    >>> {number: (seat.rank, seat.local_rank, seat.node) for number, seat in seats.items()}
    {1: (0, 1, 0), 3: (1, 0, 0), 2: (2, 0, 1)}
    """
    by_host: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=_seniority):
        by_host.setdefault(candidate.host, []).append(candidate)
    oldest = {name: _seniority(members[0])[:1] for name, members in by_host.items()}
    names = sorted(by_host, key=lambda name: (oldest[name], host_order.index(name)))
    size = sum(map(len, by_host.values()))
    seats: dict[int, Seat] = {}
    for node, name in enumerate(names):
        members = by_host[name]
        local_ranks = {slot: index for index, slot in enumerate(sorted(one.slot for one in members))}
        contiguous = max(local_ranks) < len(members)
        for one in members:
            seats[one.number] = Seat(
                rank=len(seats), size=size, local_rank=one.slot if contiguous else local_ranks[one.slot],
                local_size=len(members), node=node, nodes=len(names),
            )  # fmt: skip
    return seats


def _seniority(candidate: Candidate) -> tuple[float, int]:
    return (float("inf") if candidate.rank is None else candidate.rank, candidate.slot)


def free_slots(taken: Mapping[str, Iterable[int]], slots: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """Return where processes may be started: the lowest free slots of each host, host by host.

    Args:
        taken: by host, the slots in use.
        slots: by host, how many slots it has, in the order in which they are filled.
        most: how many processes may run in all.

    >>> free_slots({"a": [1]}, {"a": 2, "b": 2}, most=3)
    [('a', 0), ('b', 0)]
    """
    used = {name: set(numbers) for name, numbers in taken.items()}
    left = most - sum(map(len, used.values()))
    free = [(name, slot) for name, count in slots.items() for slot in range(count) if slot not in used.get(name, ())]
    return free[: max(0, left)]
