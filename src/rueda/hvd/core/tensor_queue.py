"""The tensor queue: the collectives that this rank has submitted and that have not yet finished.

A submission is recorded twice. Its *entry* stays in the table until the collective has run or failed. Its *request*
stays in the outbox until the thread that holds the progress lock sends everything in the outbox as one message. The
request of a repetition (:mod:`rueda.hvd.core.repetitions`) is one bit. After a failure the queue accepts nothing: all
open entries end with that error, and later submissions raise it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from rueda.hvd.common.exceptions import HorovodInternalError
from rueda.hvd.core.entries import ALLREDUCE, KINDS, Entry, Key, Signature
from rueda.hvd.core.messages import Define, Message, Repeat, Request, make_request
from rueda.hvd.core.repetitions import KnownRepetitions, Repetition


class TensorQueue:
    """The open entries of one rank, its unsent messages, and the names and numbers that it assigns.

    Args:
        cache_capacity: the number of signatures that are sent once and then referred to by number; with 0, repetitions
            are requested by their names, too.
    """

    def __init__(self, cache_capacity: int) -> None:
        self.entries: dict[Key, Entry] = {}
        self.outbox: list[Message] = []
        self.repeated: dict[int, int] = {}  # by process set: the bits that are unsent, beside the outbox
        self.repetitions = KnownRepetitions()
        self.signatures: dict[Signature, tuple[int, Signature]] = {}  # its number, and the first equal object
        self.failure: HorovodInternalError | None = None
        self._cache_capacity = cache_capacity
        self._counts: dict[tuple[int, int], int] = {}
        self._unique_names: dict[str, int] = {}
        self._num_joins = 0
        self._lock = threading.Lock()

    # Names.

    def default_name(self, process_set: int, kind: int) -> str:
        """Name an unnamed collective: the n-th of a kind in a process set is matched with the n-th of other ranks.

        >>> queue = TensorQueue(cache_capacity=8)
        >>> queue.default_name(0, 1), queue.default_name(0, 1), queue.default_name(0, 2)
        ('allgather.noname.1', 'allgather.noname.2', 'broadcast.noname.1')
        """
        with self._lock:
            count = self._counts[process_set, kind] = self._counts.get((process_set, kind), 0) + 1
        joins = self._num_joins
        return f"{KINDS[kind]}.noname.{joins}.{count}" if joins else f"{KINDS[kind]}.noname.{count}"

    def unique_name(self, prefix: str) -> str:
        """Name an object, such as an optimizer, that all ranks create in the same order."""
        with self._lock:
            self._unique_names[prefix] = self._unique_names.get(prefix, 0) + 1
            return f"{prefix}.{self._unique_names[prefix]}"

    def reset_default_names(self) -> None:
        """Restart the counts of unnamed collectives with new names after a join, since ranks counted differently."""
        with self._lock:
            self._num_joins += 1
            self._counts.clear()

    # Submissions.

    def add(self, entry: Entry, *, blocks: bool = False) -> bool:
        """Record a submission, and return whether the outbox was empty before.

        Args:
            entry: the collective.
            blocks: whether the caller will wait for it immediately.

        Raises:
            ValueError: a collective of this name is still in flight.
            HorovodInternalError: the world has failed before.
        """
        signature = entry.signature
        if signature.kind == ALLREDUCE and self._cache_capacity and not blocks and entry.payload is None:
            repetition = self.repetitions.find(entry.process_set, entry.name, signature)
            if repetition is not None:
                return self.add_repetition(entry, repetition)
        with self._lock:
            first = self._open(entry, entry.key)
            number, entry.signature = self.signatures.get(signature) or self._define(signature)
            self.outbox.append(
                make_request((entry.process_set, entry.name, number, entry.extra, entry.payload, blocks))
            )
        return first

    def add_repetition(self, entry: Entry, repetition: Repetition) -> bool:
        """Record the submission of what has a number; otherwise as :meth:`add`."""
        key, _, bit = repetition
        with self._lock:
            first = self._open(entry, key)
            repeated = self.repeated
            repeated[key[0]] = repeated.get(key[0], 0) | bit
        return first

    def _open(self, entry: Entry, key: Key) -> bool:
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        entries = self.entries
        if key in entries:
            raise ValueError(
                f"{entry.name!r}: expected a name that is not in flight, got one that is; "
                "synchronise the first, or give them different names"
            )
        entries[key] = entry
        entry.since = time.monotonic()
        return not self.outbox and not self.repeated

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for being sent to the coordinator."""
        return bool(self.outbox or self.repeated)

    def _define(self, signature: Signature) -> tuple[int, Signature]:
        """Send a signature with its number; once the cache is full, the next number is redefined each time."""
        number = len(self.signatures)
        if number < self._cache_capacity:
            self.signatures[signature] = (number, signature)
        self.outbox.append(Define(number, tuple(signature)))
        return number, signature

    def add_request(self, name: str, signature: Signature, extra: Any) -> None:
        """Record a request to the set of all ranks that has no entry."""
        with self._lock:
            number, _ = self.signatures.get(signature) or self._define(signature)
            self.outbox.append(Request(0, name, number, extra, None))

    def add_message(self, message: Message) -> None:
        """Record a message to the coordinator that has no entry."""
        with self._lock:
            self.outbox.append(message)

    def open_entries(self) -> list[Entry]:
        """Return the collectives that were submitted and have neither run nor failed."""
        with self._lock:
            return list(self.entries.values())

    def take_outbox(self) -> list[Message]:
        """Return all unsent messages and empty the outbox; repetitions come first, ahead of a join of this rank."""
        with self._lock:
            batch, self.outbox = self.outbox, []
            repeated, self.repeated = self.repeated, {}
        return [*map(Repeat._make, repeated.items()), *batch] if repeated else batch

    # Failures.

    def fail_entry(self, key: Key, error: HorovodInternalError) -> None:
        """End one collective, if it is still open, with an error."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            entry.error = error
            entry.done = True

    def refuse(self, failure: HorovodInternalError) -> None:
        """Refuse everything from now on in a forked process, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self.failure = failure
        self.entries.clear()
        self.outbox, self.repeated = [], {}

    def fail(self, failure: HorovodInternalError) -> bool:
        """End all collectives with an error, and return False if they had failed before: the first error is kept."""
        with self._lock:
            first = self.failure is None
            failure = self.failure = self.failure or failure
            entries = list(self.entries.values())
            self.entries.clear()
        for entry in entries:
            entry.error = type(failure)(*failure.args)
            entry.done = True
        return first
