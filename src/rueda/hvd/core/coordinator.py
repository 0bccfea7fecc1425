"""Rank 0 decides what runs next: it matches names, finds mismatches, serves joined ranks and reports stalls.

Every rank sends batches of messages (:mod:`rueda.hvd.core.messages`); a collective is *ready* when all ranks of its
process set have requested it. Responses go to all of them in one order, and every rank runs them in that order: so it
does not matter in which order the ranks submitted. Nothing here touches a tensor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from rueda.hvd.core.messages import (
    AllLeft,
    Define,
    Join,
    Joined,
    Leave,
    Message,
    Payloads,
    Refuse,
    Request,
    Run,
    Withdraw,
)  # fmt: skip
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.timeline import Timeline

_log = logging.getLogger("rueda.hvd")


class Response(NamedTuple):
    """A message, and the ranks that it is for."""

    ranks: Sequence[int]
    message: Message


@dataclass(slots=True)
class _Waiting:
    """A collective that some ranks have requested: which, since when, and what each said."""

    process_set: int
    name: str
    key: Key
    signature: Signature  # of the first that has not withdrawn
    since: float
    reported: float
    alike: bool = True  # all signatures equal the first; where False, some may differ
    ready: bool = False
    requests: dict[int, Request] = field(default_factory=dict)
    signatures: dict[int, Signature] = field(default_factory=dict)


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
        self._known: dict[Signature, Signature] = {}  # one object for all that are equal: compared at a glance
        self._ready: list[_Waiting] = []
        self._responses: list[Response] = []
        self._next_set = 1

    # What the ranks say.

    def take(self, rank: int, messages: Iterable[Message]) -> None:
        """Note a rank's messages."""
        for message in messages:
            if isinstance(message, Request):
                self._request(rank, message)
            elif isinstance(message, Define):
                self._define(rank, message.number, message.signature)
            elif isinstance(message, Join):
                self._join(rank)
            elif isinstance(message, Withdraw):
                self._withdraw(rank, (message.process_set, message.name))
            elif isinstance(message, Leave):
                self.leave(rank)

    def _define(self, rank: int, number: int, signature: Signature) -> None:
        if number in self._signatures[rank]:  # used again by a rank with a smaller cache: `_known` must not grow
            signature = self._known.get(signature, signature)
        elif number < self._settings.cache_capacity:
            signature = self._known.setdefault(signature, signature)
        self._signatures[rank][number] = signature

    def _request(self, rank: int, request: Request) -> None:
        process_set, name, number, extra, _ = request
        key = (process_set, name)
        signature = self._signatures[rank][number]
        waiting = self.table.get(key)
        if waiting is None:
            age = extra if signature.kind == STUCK else 0.0
            since = time.monotonic() - age
            waiting = self.table[key] = _Waiting(process_set, name, key, signature, since, since)
            if self._timeline.active:
                self._timeline.begin([name], f"NEGOTIATE_{KINDS[signature.kind].upper()}")
        elif signature is not waiting.signature and signature != waiting.signature:
            waiting.alike = False
        waiting.requests[rank] = request
        waiting.signatures[rank] = signature
        if self._timeline.active:
            self._timeline.mark(name, str(rank))
        members = self.sets.get(process_set)
        if members is None:
            self._refuse(waiting, f"process set {process_set}: expected a registered one, but it was removed", [rank])
        elif len(waiting.requests) == len(members):
            self._release(waiting)
        elif self.joined or self.gone:
            self._look_again(waiting, members)

    def _release(self, waiting: _Waiting) -> None:
        waiting.ready = True
        self._ready.append(waiting)

    def _look_again(self, waiting: _Waiting, members: tuple[int, ...]) -> None:
        """Refuse what needs a rank that has left; release what lacks joined ranks only."""
        left = self.gone.intersection(members)
        if left:
            text = f"{waiting.name!r} needs rank {min(left)}, which has shut down"
            self._refuse(waiting, text, list(waiting.requests))
        elif all(rank in waiting.requests or rank in self.joined for rank in members):
            self._release(waiting)

    def _join(self, rank: int) -> None:
        self.joined.add(rank)
        if len(self.joined) == self.size:
            self.joined.clear()
            self._responses += self._ready_responses()  # what was ready while others were still away comes first
            self._responses.append(Response(range(self.size), Joined(rank)))
            return
        if self.gone:
            self._refuse_join(rank, min(self.gone))
            self.joined.discard(rank)
            return
        for waiting in list(self.table.values()):
            if not waiting.ready:
                self._look_again(waiting, self.sets[waiting.process_set])

    def _withdraw(self, rank: int, key: Key) -> None:
        waiting = self.table.get(key)
        if waiting is not None and not waiting.ready:
            waiting.requests.pop(rank, None)
            waiting.signatures.pop(rank, None)
            if waiting.signatures:
                waiting.signature = next(iter(waiting.signatures.values()))
            else:
                del self.table[key]

    def leave(self, rank: int) -> None:
        """Note that a rank has shut down: what needs it cannot run any more."""
        self.gone.add(rank)
        for waiting in list(self.table.values()):
            if not waiting.ready and rank in self.sets.get(waiting.process_set, ()):
                self._look_again(waiting, self.sets[waiting.process_set])
        for other in self.joined:
            self._refuse_join(other, rank)
        self.joined.clear()
        if len(self.gone) == self.size:
            self._responses.append(Response(range(self.size), AllLeft()))

    # What they are told.

    def respond(self) -> list[Response]:
        """Give the responses that are due, in the order in which all ranks must run them."""
        if not self._ready and not self._responses:
            return []
        responses = [*self._responses, *self._ready_responses()]
        self._responses = []
        return responses

    def _ready_responses(self) -> list[Response]:
        responses: list[Response] = []
        ready, self._ready = self._ready, []
        run: Run | None = None  # the last response, if the next collective may travel with it
        for waiting in ready:
            del self.table[waiting.key]
            if self._timeline.active:
                self._timeline.end([waiting.name])
            kind, members = waiting.signature.kind, self.sets[waiting.process_set]
            complete = len(waiting.requests) == len(members)
            problem = None if complete and waiting.alike else self._problem(waiting, members)
            if problem is not None:
                responses.append(Response(members, problem))
                run = None
                continue
            if kind == STUCK:
                continue
            extra, payload = self._gathered(waiting, members)
            if run is None or run.kind != kind or run.process_set != waiting.process_set:
                run = Run(kind, waiting.process_set, [], [], [], {})
                responses.append(Response(members, run))
            run.names.append(waiting.name)
            run.extras.append(extra)
            run.payloads.append(payload)
            if not complete:
                run.absent[waiting.name] = waiting.signature
            if kind in (ADD_SET, REMOVE_SET):
                run = None
        return responses

    def _problem(self, waiting: _Waiting, members: tuple[int, ...]) -> Refuse | None:
        """Say why a collective that all ranks have requested, but for the joined ones, cannot run."""
        name, signature = waiting.name, waiting.signature
        if len(set(waiting.signatures.values())) > 1:
            return Refuse(waiting.process_set, name, True, describe_mismatch(name, waiting.signatures))
        absent = [rank for rank in members if rank not in waiting.requests]
        text = ""
        if absent and signature.kind not in (ALLREDUCE, BARRIER, STUCK):
            text = (
                f"{KINDS[signature.kind]} {name!r} cannot run while ranks {absent} have joined and have nothing to "
                "give; use allreduce, or call it before join"
            )
        elif absent and signature.kind == ALLREDUCE and signature.operation not in (SUM, AVERAGE, ADASUM):
            text = (
                f"allreduce {name!r}: expected Average, Sum or Adasum while ranks {absent} have joined, "
                "since they give zeros; use one of these"
            )
        return Refuse(waiting.process_set, name, False, text) if text else None

    def _gathered(self, waiting: _Waiting, members: tuple[int, ...]) -> tuple[Any, Payloads]:
        """Give what the ranks sent beside their signatures: the extras, and the payloads where all sent them."""
        signature, requests = waiting.signature, waiting.requests
        if signature.kind == ADD_SET:
            number = self._next_set
            self._next_set += 1
            self.sets[number] = signature.ranks
            return number, None
        if signature.kind == REMOVE_SET:
            removed = [number for number, ranks in self.sets.items() if number and ranks == signature.ranks]
            for number in removed:
                del self.sets[number]
            return removed, None
        if signature.kind == ALLREDUCE and signature.shapes and next(iter(requests.values())).payload is None:
            return None, None  # the usual case for all that is large
        in_order = [requests.get(rank) for rank in members]
        extras = [None if request is None else request.extra for request in in_order]
        payloads = [None if request is None else request.payload for request in in_order]
        complete = all(request is None or request.payload is not None for request in in_order)
        return (extras if any(extra is not None for extra in extras) else None), (payloads if complete else None)

    def _refuse(self, waiting: _Waiting, text: str, ranks: list[int]) -> None:
        self.table.pop(waiting.key, None)
        self._responses.append(Response(ranks, Refuse(waiting.process_set, waiting.name, False, text)))

    def _refuse_join(self, rank: int, gone: int) -> None:
        text = f"join needs rank {gone}, which has shut down"
        self._responses.append(Response([rank], Refuse(0, "", False, text)))

    # Stalls.

    def check_stalls(self) -> str | None:
        """Report what waits too long; gives a text if the world must be given up."""
        limit, end = self._settings.stall_seconds, self._settings.stall_shutdown_seconds
        if not self.table or not (limit or end):
            return None
        now = time.monotonic()
        for waiting in self.table.values():
            age = now - waiting.since
            members = self.sets.get(waiting.process_set, ())
            missing = [rank for rank in members if rank not in waiting.requests and rank not in self.joined]
            if not missing:
                continue
            story = (
                f"{KINDS[waiting.signature.kind]} {waiting.name!r} was submitted by ranks "
                f"{sorted(waiting.requests)} {age:.0f} s ago and not by ranks {missing}"
            )
            if end and age > end:
                return f"stalled: {story}; given up after HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={end:g}"
            if limit and now - waiting.reported > limit and age > limit:
                waiting.reported = now
                _log.warning("stalled: %s; they may have ended, take another branch, or work longer than others", story)
        return None
