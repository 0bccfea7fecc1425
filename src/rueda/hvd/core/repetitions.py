"""All-reduces that are repeated in every step: what all ranks have run twice is from then on negotiated by one bit.

Horovod calls it the response cache. When an all-reduce of one name and signature has run for the second time, the
coordinator gives it a number in its process set, and never changes what the number means. A rank that submits it again
sends one bit instead of a name and a signature, all repetitions of a cycle as one integer. The coordinator needs one
``and`` of integers to see which of them all ranks have submitted, whatever their number, and answers with an integer.

What is not ordinary is *written out*: the bits become requests, as if the ranks had sent their names. This concerns
ranks that have joined or left, a timeline that shows when each rank came, a rank that submits another signature by the
same name, and stalls. So there is one place that treats these cases, :mod:`rueda.hvd.core.coordinator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rueda.hvd.core.entries import ALLREDUCE, Key, Signature
from rueda.hvd.core.messages import Fields


def numbers_in(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, in ascending order.

    >>> list(numbers_in(0b10110))
    [1, 2, 4]
    """
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class Waiting(NamedTuple):
    """A bit that a rank has sent and that not all ranks have: the rank, the number, and since when it waits."""

    rank: int
    number: int
    since: float


class Repetitions:
    """The coordinator's table of the numbered all-reduces of one process set.

    Args:
        members: the ranks of the process set.
    """

    def __init__(self, members: Sequence[int]) -> None:
        self.rows: list[tuple[str, Signature]] = []  # what each number means
        self.ambiguous = 0  # bits of names that have several numbers: only written out, a mismatch is noticed
        self.written = 0  # bits of names that may be in the coordinator's table of requests
        self._bits_of: dict[str, int] = {}  # all numbers of a name
        self._sent = dict.fromkeys(members, 0)  # by rank: what has not run yet
        self._since: list[tuple[float, int]] = []  # when bits were first sent, oldest first

    def bits_of(self, name: str) -> int:
        """Return the bits of all numbers that a name has."""
        return self._bits_of.get(name, 0)

    def number(self, name: str, signature: Signature) -> bool:
        """Give an all-reduce the next number, and return False if it has one."""
        bits = self.bits_of(name)
        if any(self.rows[number][1] == signature for number in numbers_in(bits)):
            return False
        if bits:
            self.ambiguous |= bits | 1 << len(self.rows)
        self._bits_of[name] = bits | 1 << len(self.rows)
        self.rows.append((name, signature))
        return True

    def add(self, rank: int, bits: int, now: float) -> int:
        """Record the bits that a rank sent, and return those that all ranks have sent now.

        >>> table = Repetitions([0, 1])
        >>> table.add(0, 0b011, now=1.0), table.add(1, 0b110, now=2.0)
        (0, 2)
        >>> table.oldest, table.take(0b111)
        (1.0, [Waiting(rank=0, number=0, since=1.0), Waiting(rank=1, number=2, since=2.0)])
        """
        sent = self._sent
        ready = bits
        known = 0
        for other, theirs in sent.items():
            if other != rank:
                ready &= theirs
                known |= theirs
        sent[rank] |= bits
        if bits & ~known:
            self._since.append((now, bits & ~known))
        if ready:
            self._forget(ready)
        return ready

    @property
    def oldest(self) -> float | None:
        """Since when the oldest bit waits; None if none does."""
        return self._since[0][0] if self._since else None

    def take(self, bits: int) -> list[Waiting]:
        """Remove bits from those that wait, and return them, the oldest first."""
        found = [
            Waiting(rank, number, since)
            for since, waiting in self._since
            for number in numbers_in(waiting & bits)
            for rank, sent in self._sent.items()
            if sent >> number & 1
        ]
        self._forget(bits)
        return found

    def _forget(self, bits: int) -> None:
        for rank in self._sent:
            self._sent[rank] &= ~bits
        self._since = [(since, left) for since, waiting in self._since if (left := waiting & ~bits)]


class Repetition(NamedTuple):
    """A numbered all-reduce as one of its ranks knows it."""

    key: Key
    signature: Signature
    bit: int


class KnownRepetitions:
    """The numbered all-reduces of this rank, of all process sets."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[int, str], Repetition] = {}
        self._rows: dict[int, list[Repetition]] = {}

    def find(self, process_set: int, name: str, signature: Signature) -> Repetition | None:
        """Return the repetition of this name and signature, if it has a number."""
        found = self._by_name.get((process_set, name))
        if found is None or (found.signature is not signature and found.signature != signature):
            return None
        return found

    def define(self, process_set: int, first: int, rows: Iterable[tuple[str, Fields]]) -> None:
        """Record what the coordinator has numbered."""
        known = self._rows.setdefault(process_set, [])
        assert len(known) == first, "a number was skipped"
        for name, fields in rows:
            repetition = Repetition((process_set, ALLREDUCE, name), Signature._make(fields), 1 << len(known))
            known.append(repetition)
            self._by_name[process_set, name] = repetition

    def meant_by(self, process_set: int, bits: int) -> list[Repetition]:
        """Return the repetitions that some bits stand for, in the order of their numbers."""
        known = self._rows[process_set]
        return [known[number] for number in numbers_in(bits)]
