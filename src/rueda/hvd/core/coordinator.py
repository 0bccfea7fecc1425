"""Rank 0 decides what runs next: it matches names, finds mismatches, serves joined ranks and reports stalls.

Every rank sends batches of requests; a collective is *ready* when all ranks of its process set have asked for it.
Responses go to all of them in one order, and every rank runs them in that order: so it does not matter in which order
the ranks submitted. Nothing here touches a tensor.

========================================================  ==========================================================
a rank says                                               the coordinator answers
========================================================  ==========================================================
``DEFINE number, signature``                              nothing: the next requests say the number only
``REQUEST set, name, signature, extra, payload``          ``RUN kind, set, names, extras, payloads, signatures`` to
                                                          all members, or ``ERROR set, name, text``
``JOIN``                                                  ``JOINED last rank`` when all have
``BYE``                                                   ``BYE`` when all have
``WITHDRAW set, name``                                    nothing
                                                          ``ABORT text``: the world is given up
========================================================  ==========================================================
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from rueda.hvd.core.entries import (
    ADASUM,
    ADD_SET,
    ALLREDUCE,
    AVERAGE,
    BARRIER,
    KINDS,
    REMOVE_SET,
    STUCK,
    SUM,
    Key,
    Signature,
    describe_mismatch,
)  # fmt: skip
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.timeline import Timeline

DEFINE, REQUEST, JOIN, BYE, WITHDRAW, RUN, ERROR, JOINED, ABORT = range(9)
MISMATCH, UNUSABLE = range(2)  # what an ERROR is about

_log = logging.getLogger("rueda.hvd")


class _Waiting:
    """A name that some ranks have asked for: since when, and what each said."""

    __slots__ = ("parts", "reported", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.reported = since
        self.parts: dict[int, tuple[Signature, Any, bytes | None]] = {}


class Coordinator:
    """The table of what waits, and the responses that are due."""

    def __init__(self, size: int, settings: Settings, timeline: Timeline) -> None:
        self.size = size
        self.sets: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.joined: set[int] = set()
        self.gone: set[int] = set()
        self.table: dict[Key, _Waiting] = {}
        self._settings = settings
        self._timeline = timeline
        self._signatures: list[dict[int, Signature]] = [{} for _ in range(size)]
        self._ready: list[Key] = []
        self._responses: list[tuple[Iterable[int], tuple[Any, ...]]] = []
        self._next_set = 1

    # What the ranks say.

    def take(self, rank: int, batch: list[tuple[Any, ...]]) -> None:
        """Note a rank's batch."""
        for item in batch:
            what = item[0]
            if what == REQUEST:
                self._request(rank, *item[1:])
            elif what == DEFINE:
                self._signatures[rank][item[1]] = item[2]
            elif what == JOIN:
                self._join(rank)
            elif what == WITHDRAW:
                self._withdraw(rank, (item[1], item[2]))
            elif what == BYE:
                self.leave(rank)

    def _request(
        self, rank: int, number: int, name: str, signature: int | Signature, extra: Any, payload: bytes | None
    ) -> None:
        key = (number, name)
        signed = self._signatures[rank][signature] if isinstance(signature, int) else signature
        waiting = self.table.get(key)
        if waiting is None:
            age = extra if signed[0] == STUCK else 0.0
            waiting = self.table[key] = _Waiting(time.monotonic() - age)
            if self._timeline.active:
                self._timeline.begin([name], f"NEGOTIATE_{KINDS[signed[0]].upper()}")
        waiting.parts[rank] = (signed, extra, payload)
        if self._timeline.active:
            self._timeline.mark(name, str(rank))
        members = self.sets.get(number)
        if members is None:
            self._refuse(key, f"process set {number}: expected a registered one, but it was removed", [rank])
        elif len(waiting.parts) == len(members):
            self._ready.append(key)
        elif self.joined or self.gone:
            self._look_again(key, waiting, members)

    def _look_again(self, key: Key, waiting: _Waiting, members: tuple[int, ...]) -> None:
        left = self.gone.intersection(members)
        if left:
            rank = min(left)
            self._refuse(key, f"{key[1]!r} needs rank {rank}, which has shut down", list(waiting.parts))
        elif all(rank in waiting.parts or rank in self.joined for rank in members):
            self._ready.append(key)

    def _join(self, rank: int) -> None:
        self.joined.add(rank)
        if len(self.joined) == self.size:
            self.joined.clear()
            self._responses += self._ready_responses()  # what was ready while others were still away comes first
            self._responses.append((range(self.size), (JOINED, rank)))
            return
        if self.gone:
            self._responses.append(
                ([rank], (ERROR, 0, "", UNUSABLE, f"join needs rank {min(self.gone)}, which has shut down"))
            )
            self.joined.discard(rank)
            return
        for key, waiting in list(self.table.items()):
            if key not in self._ready:
                self._look_again(key, waiting, self.sets[key[0]])

    def _withdraw(self, rank: int, key: Key) -> None:
        waiting = self.table.get(key)
        if waiting is not None and key not in self._ready:
            waiting.parts.pop(rank, None)
            if not waiting.parts:
                del self.table[key]

    def leave(self, rank: int) -> None:
        """Note that a rank has shut down: what needs it cannot run any more."""
        self.gone.add(rank)
        for key, waiting in list(self.table.items()):
            if key not in self._ready and rank in self.sets.get(key[0], ()):
                self._look_again(key, waiting, self.sets[key[0]])
        for other in self.joined:
            self._responses.append(([other], (ERROR, 0, "", UNUSABLE, f"join needs rank {rank}, which has shut down")))
        self.joined.clear()
        if len(self.gone) == self.size:
            self._responses.append((range(self.size), (BYE,)))

    # What they are told.

    def respond(self) -> list[tuple[Iterable[int], tuple[Any, ...]]]:
        """Give the responses that are due, each with the ranks it is for, in the order in which all must run them."""
        if not self._ready and not self._responses:
            return []
        responses = [*self._responses, *self._ready_responses()]
        self._responses = []
        return responses

    def _ready_responses(self) -> list[tuple[Iterable[int], tuple[Any, ...]]]:
        responses: list[tuple[Iterable[int], tuple[Any, ...]]] = []
        ready, self._ready = self._ready, []
        last: tuple[int, int] | None = None
        for key in ready:
            waiting = self.table.pop(key)
            if self._timeline.active:
                self._timeline.end([key[1]])
            members = self.sets[key[0]]
            parts = waiting.parts
            signature = next(iter(parts.values()))[0]
            alike = len(parts) == len(members) and all(part[0] == signature for part in parts.values())
            problem = None if alike else self._problem(key, parts, members)
            if problem is not None:
                responses.append((members, (ERROR, *key, *problem)))
                last = None
                continue
            kind = signature[0]
            if kind == STUCK:
                continue
            extra, payload = self._gathered(kind, signature, parts, members)
            absent = signature if len(parts) < len(members) else None
            if last == (kind, key[0]):  # travels with the one before
                for column, value in zip(responses[-1][1][3:], (key[1], extra, payload, absent), strict=True):
                    column.append(value)
            else:
                responses.append((members, (RUN, kind, key[0], [key[1]], [extra], [payload], [absent])))
                last = (kind, key[0])
            if kind in (ADD_SET, REMOVE_SET):
                last = None
        return responses

    def _problem(
        self, key: Key, parts: dict[int, tuple[Signature, Any, bytes | None]], members: tuple[int, ...]
    ) -> tuple[int, str] | None:
        first = next(iter(parts.values()))[0]
        for signature, _, _ in parts.values():
            if signature != first:
                return MISMATCH, describe_mismatch(key, {rank: part[0] for rank, part in parts.items()})
        if len(parts) < len(members) and first[0] not in (BARRIER, STUCK):
            absent = [rank for rank in members if rank not in parts]
            if first[0] != ALLREDUCE:
                return UNUSABLE, (
                    f"{KINDS[first[0]]} {key[1]!r} cannot run while ranks {absent} have joined and have nothing to "
                    "give; use allreduce, or call it before join"
                )
            if first[1] not in (SUM, AVERAGE, ADASUM):
                return UNUSABLE, (
                    f"allreduce {key[1]!r}: expected Average, Sum or Adasum while ranks {absent} have joined, "
                    "since they give zeros; use one of these"
                )
        return None

    def _gathered(
        self,
        kind: int,
        signature: Signature,
        parts: dict[int, tuple[Signature, Any, bytes | None]],
        members: tuple[int, ...],
    ) -> tuple[Any, list[bytes | None] | None]:
        if kind == ADD_SET:
            number = self._next_set
            self._next_set += 1
            self.sets[number] = signature[7][0]
            return number, None
        if kind == REMOVE_SET:
            self.sets.pop(signature[7][0][0], None)
            return None, None
        if kind == ALLREDUCE and signature[7] and next(iter(parts.values()))[2] is None:
            return None, None  # the usual case for all that is large
        in_order = [parts.get(rank) for rank in members]
        extras = [None if part is None else part[1] for part in in_order]
        payloads = [None if part is None else part[2] for part in in_order]
        complete = all(part is None or part[2] is not None for part in in_order)
        return (extras if any(extra is not None for extra in extras) else None), (payloads if complete else None)

    def _refuse(self, key: Key, text: str, ranks: list[int]) -> None:
        self.table.pop(key, None)
        self._responses.append((ranks, (ERROR, *key, UNUSABLE, text)))

    # Stalls.

    def check_stalls(self) -> str | None:
        """Report what waits too long; gives a text if the world must be given up."""
        limit, end = self._settings.stall_seconds, self._settings.stall_shutdown_seconds
        if not self.table or not (limit or end):
            return None
        now = time.monotonic()
        for key, waiting in self.table.items():
            age = now - waiting.since
            missing = [r for r in self.sets.get(key[0], ()) if r not in waiting.parts and r not in self.joined]
            if not missing:
                continue
            story = (
                f"{KINDS[next(iter(waiting.parts.values()))[0][0]]} {key[1]!r} was submitted by ranks "
                f"{sorted(waiting.parts)} {age:.0f} s ago and not by ranks {missing}"
            )
            if end and age > end:
                return f"stalled: {story}; given up after HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={end:g}"
            if limit and now - waiting.reported > limit and age > limit:
                waiting.reported = now
                _log.warning("stalled: %s; they may have ended, take another branch, or work longer than others", story)
        return None
