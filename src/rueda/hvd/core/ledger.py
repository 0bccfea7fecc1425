"""What this rank has submitted and not yet seen the end of, under one lock.

A submission is noted twice. Its *entry* stays in the table until the collective has run or failed. The *request*, the
words for rank 0, stays in the outbox until the thread at the wheel takes all that has gathered there as one message.
After a failure nothing is noted any more: all that was open ends with it, and all that comes later raises it.
"""

from __future__ import annotations

import threading
from typing import Any

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.entries import KINDS, Entry, Key, Signature
from rueda.hvd.core.messages import Define, Join, Message, Request, request


class Ledger:
    """The open collectives of one rank, and the names and numbers that it gives them.

    Args:
        cache_capacity: how many signatures travel as a number once they were spelled out.
    """

    def __init__(self, cache_capacity: int) -> None:
        self.entries: dict[Key, Entry] = {}
        self.outbox: list[Message] = []
        self.signatures: dict[Signature, tuple[int, Signature]] = {}  # the number of each, and the one kept object
        self.failure: HorovodInternalError | None = None
        self._cache_capacity = cache_capacity
        self._counts: dict[tuple[int, int], int] = {}
        self._titles: dict[str, int] = {}
        self._num_joins = 0
        self._joining: Entry | None = None
        self._lock = threading.Lock()

    # Names.

    def name(self, number: int, kind: int) -> str:
        """Name an unnamed collective: the n-th of its kind in its process set meets the n-th of the other ranks.

        >>> ledger = Ledger(cache_capacity=8)
        >>> ledger.name(0, 1), ledger.name(0, 1), ledger.name(0, 2)
        ('allgather.noname.1', 'allgather.noname.2', 'broadcast.noname.1')
        """
        with self._lock:
            count = self._counts[number, kind] = self._counts.get((number, kind), 0) + 1
        joins = self._num_joins
        return f"{KINDS[kind]}.noname.{joins}.{count}" if joins else f"{KINDS[kind]}.noname.{count}"

    def title(self, what: str) -> str:
        """Name something that every rank makes in the same order (an optimizer)."""
        with self._lock:
            self._titles[what] = self._titles.get(what, 0) + 1
            return f"{what}.{self._titles[what]}"

    # What begins.

    def add(self, entry: Entry) -> bool:
        """Note a submission; gives whether it is the first in the outbox.

        Raises:
            ValueError: a collective of this name is still in flight.
            HorovodInternalError: the world has failed before.
        """
        signature = entry.signature
        with self._lock:
            if self.failure is not None:
                raise type(self.failure)(*self.failure.args)
            if entry.key in self.entries:
                raise ValueError(
                    f"{entry.name!r}: expected a name that is not in flight, got one that is; "
                    "synchronise the first, or give them different names"
                )
            self.entries[entry.key] = entry
            outbox = self.outbox
            first = not outbox
            number, entry.signature = self.signatures.get(signature) or self._define(signature)
            outbox.append(request((entry.process_set, entry.name, number, entry.extra, entry.payload)))
        return first

    def _define(self, signature: Signature) -> tuple[int, Signature]:
        """Tell rank 0 the number of a signature; when the cache is full, it is one that is defined anew each time."""
        number = len(self.signatures)
        if number < self._cache_capacity:
            self.signatures[signature] = (number, signature)
        self.outbox.append(Define(number, signature))
        return number, signature

    def request(self, process_set: int, name: str, signature: Signature, extra: Any) -> None:
        """Note a request that belongs to no entry."""
        with self._lock:
            number, _ = self.signatures.get(signature) or self._define(signature)
            self.outbox.append(Request(process_set, name, number, extra, None))

    def add_join(self, entry: Entry) -> None:
        """Note that this rank joins; the entry ends when all have.

        Raises:
            HorovodInternalError: the world has failed before.
        """
        with self._lock:
            if self.failure is not None:
                raise type(self.failure)(*self.failure.args)
            self._joining = entry
            self.outbox.append(Join())

    def say(self, message: Message) -> None:
        """Note a message to rank 0 that belongs to no entry."""
        with self._lock:
            self.outbox.append(message)

    def take_outbox(self) -> list[Message]:
        """Give all that waits to be told, and begin anew."""
        with self._lock:
            batch, self.outbox = self.outbox, []
        return batch

    # What ends.

    def refuse(self, process_set: int, name: str, error: HorovodInternalError) -> None:
        """End one collective with an error; where the name is empty, the join."""
        entry = self._take_joining() if name == "" else None
        if entry is None:
            entry = self.entries.pop((process_set, name), None)
        if entry is not None:
            entry.error = error
            entry.done = True

    def end_join(self, last: int) -> None:
        """All ranks have joined; who came last is the result."""
        entry = self._take_joining()
        if entry is not None:
            entry.result = last
            entry.done = True

    def _take_joining(self) -> Entry | None:
        with self._lock:
            entry, self._joining = self._joining, None
        return entry

    def count_anew(self) -> None:
        """After a join, before which the ranks have counted differently: all begin again, with new names."""
        with self._lock:
            self._num_joins += 1
            self._counts.clear()

    def fail(self, failure: HorovodInternalError) -> bool:
        """End all with an error; gives False if all had failed before: what came first is the reason for the rest."""
        with self._lock:
            if self.failure is not None:
                return False
            self.failure = failure
            entries = list(self.entries.values())
            self.entries.clear()
            if self._joining is not None:
                entries.append(self._joining)
                self._joining = None
        for entry in entries:
            entry.error = type(failure)(*failure.args)
            entry.done = True
        return True
