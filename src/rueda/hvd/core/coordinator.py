"""The coordinator on rank 0: it decides which collectives run, and in which order.

Every rank sends batches of messages (:mod:`rueda.hvd.core.messages`). A collective is *ready* once all ranks of its
process set have requested it. All ranks get the responses in the same order and run them in that order, so the order
in which each rank submitted does not matter. The coordinator also detects mismatches, lets collectives run without
ranks that have joined, and reports stalls. It touches no tensor.

All-reduces that are repeated have numbers (:mod:`rueda.hvd.core.repetitions`), and in the ordinary case never come into
the table of pending collectives.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rueda.hvd.core.entries import (
    ADASUM,
    ADD_SET,
    ALLREDUCE,
    AVERAGE,
    BARRIER,
    JOIN,
    JOIN_SET,
    KINDS,
    REMOVE_SET,
    STALL_REPORT,
    SUM,
    Key,
    Signature,
    describe_mismatch,
)  # fmt: skip
from rueda.hvd.core.messages import (
    Abort,
    AllLeft,
    Define,
    Leave,
    Message,
    Number,
    Payloads,
    Refuse,
    Repeat,
    Replay,
    Request,
    Run,
    RunRepeated,
    Withdraw,
)  # fmt: skip
from rueda.hvd.core.prelude import ENTRANCE_KEY, Prelude, refusal
from rueda.hvd.core.repetitions import Repetitions, numbers_in
from rueda.hvd.core.settings import Settings
from rueda.hvd.core.timeline import Timeline

_log = logging.getLogger("rueda.hvd")
_SEEN_PER_NUMBER = 8  # how many names are remembered that have run once, for each one that may have a number


class Response(NamedTuple):
    """A message and the ranks to which it is sent."""

    ranks: Sequence[int]
    message: Message


@dataclass(slots=True)
class _Pending:
    """A collective that some ranks have requested, with the signature and the request of each."""

    key: Key
    signature: Signature  # of the first rank that has not withdrawn
    since: float
    reported: float
    alike: bool = True  # False: the signatures may differ
    ready: bool = False
    requests: dict[int, tuple[Signature, Request]] = field(default_factory=dict)


class Coordinator:
    """The table of pending collectives, and the responses that have not been sent.

    Args:
        size: the number of ranks.
        settings: see :class:`Settings`.
        timeline: where negotiations are recorded.
        prelude: what is given to ranks that join this running elastic job; None if none can.
    """

    def __init__(self, size: int, settings: Settings, timeline: Timeline, prelude: Prelude | None = None) -> None:
        self.size = size
        self.sets: dict[int, tuple[int, ...]] = dict.fromkeys((0, JOIN_SET), tuple(range(size)))
        self.joined: set[int] = set()
        self.left: set[int] = set()
        self.pending: dict[Key, _Pending] = {}
        self._settings = settings
        self._timeline = timeline
        self._signatures: list[dict[int, Signature]] = [{} for _ in range(size)]
        self._interned: dict[Signature, Signature] = {}  # one object for equal signatures: fast to compare
        self._ready: list[_Pending] = []
        self._repetitions: dict[int, Repetitions] = {}  # by process set
        self._ready_bits: dict[int, int] = {}  # by process set: what all ranks repeat
        self._seen: dict[tuple[int, str], Signature] = {}  # all-reduces that have run once
        self._responses: list[Response] = []
        self._next_set = 1
        self._prelude = prelude  # until all ranks have entered elastic.run
        self._num_requests: Counter[tuple[int, Key]] = Counter()  # of each rank, as long as that

    # Messages from the ranks.

    def receive(self, rank: int, messages: Iterable[Message]) -> None:
        """Process the messages of a rank."""
        for message in messages:
            if isinstance(message, Request):
                self._request(rank, message)
            elif isinstance(message, Repeat):
                self._repeat(rank, message.process_set, message.bits)
            elif isinstance(message, Define):
                self._define(rank, message.number, Signature._make(message.signature))
            elif isinstance(message, Withdraw):
                self._withdraw(rank, (message.process_set, message.kind, message.name))
            elif isinstance(message, Leave):
                self._leave(rank)
            elif isinstance(message, Abort):
                self._responses.append(Response([r for r in range(self.size) if r not in self.left], message))

    def _define(self, rank: int, number: int, signature: Signature) -> None:
        if number in self._signatures[rank]:  # redefined by a rank with a smaller cache: `_interned` must not grow
            signature = self._interned.get(signature, signature)
        elif number < self._settings.cache_capacity:
            signature = self._interned.setdefault(signature, signature)
        self._signatures[rank][number] = signature

    def _request(self, rank: int, request: Request) -> None:
        signature = self._signatures[rank][request.signature]
        if self._repetitions and signature.kind == ALLREDUCE:
            self._write_out_name(request.process_set, request.name)
        self._add(rank, signature, request)
        if self._prelude is not None:
            self._num_requests[rank, (request.process_set, signature.kind, request.name)] += 1
            self._answer_preludes(self._prelude)

    def _add(self, rank: int, signature: Signature, request: Request, since: float | None = None) -> None:
        process_set, name, _, extra, _, blocks = request
        key = (process_set, signature.kind, name)
        pending = self.pending.get(key)
        if pending is None:
            if since is None:
                since = time.monotonic() - (extra if signature.kind == STALL_REPORT else 0.0)
            pending = self.pending[key] = _Pending(key, signature, since, since)
            if self._timeline.active:
                self._timeline.begin([name], f"NEGOTIATE_{KINDS[signature.kind].upper()}")
        elif signature is not pending.signature and signature != pending.signature:
            pending.alike = False
        pending.requests[rank] = (signature, request)
        if self._timeline.active:
            self._timeline.mark(name, str(rank))
        members = self.sets.get(process_set)
        if members is not None and len(pending.requests) == len(members):
            self._mark_ready(pending)
        elif members is None or self.joined or self.left:
            self._recheck(pending)
        elif blocks and len(self.pending) > 1:
            self._refuse_confused(key, len(members))
        if signature.kind == JOIN:
            self._join(rank, pending)

    def _answer_preludes(self, prelude: Prelude) -> None:
        """Answer ranks whose collectives wait for others that wait for them in ``elastic.run``."""
        entrance = self.pending.get(ENTRANCE_KEY)
        if entrance is None:
            return
        if entrance.ready:
            self._prelude = None
            return
        for key, pending in list(self.pending.items()):
            if pending is entrance or pending.ready or not pending.requests.keys().isdisjoint(entrance.requests):
                continue
            del self.pending[key]
            for rank, (signature, _) in pending.requests.items():
                kept = prelude.find(key, signature, self._num_requests[rank, key] - 1)
                answer = Refuse(*key, False, refusal(key)) if kept is None else Replay(*key, *kept)
                self._responses.append(Response([rank], answer))

    # Repetitions, and how they are written out.

    def _repeat(self, rank: int, process_set: int, bits: int) -> None:
        table = self._repetitions[process_set]
        now = time.monotonic()
        if self.joined or self.left or self._timeline.active or process_set not in self.sets:
            written = bits
        else:
            written = bits & table.ambiguous
            for number in numbers_in(bits & table.written & ~written):
                if (process_set, ALLREDUCE, table.rows[number][0]) in self.pending:
                    written |= 1 << number
                else:
                    table.written &= ~(1 << number)
        if bits & ~written and (ready := table.add(rank, bits & ~written, now)):
            self._ready_bits[process_set] = self._ready_bits.get(process_set, 0) | ready
        for number in numbers_in(written):
            name, signature = table.rows[number]
            self._write_out_name(process_set, name)
            self._add(rank, signature, Request(process_set, name, -1, None, None), now)

    def _write_out_name(self, process_set: int, name: str) -> None:
        table = self._repetitions.get(process_set)
        if table is not None and (bits := table.bits_of(name)):
            self._write_out(process_set, bits)

    def _write_out(self, process_set: int, bits: int = -1) -> None:
        """Turn the bits that wait in a process set, or some of them, into requests."""
        table = self._repetitions[process_set]
        table.written |= bits & (1 << len(table.rows)) - 1
        for rank, number, since in table.take(bits):
            name, signature = table.rows[number]
            self._add(rank, signature, Request(process_set, name, -1, None, None), since)

    def _write_out_all(self) -> None:
        for process_set in self._repetitions:
            self._write_out(process_set)

    def _number(self, process_set: int, name: str, signature: Signature, new: list[tuple[str, Signature]]) -> None:
        """Note that an all-reduce has run; one that has run before gets a number and is added to ``new``."""
        capacity = self._settings.cache_capacity
        key = (process_set, name)
        if not capacity or self._prelude is not None:
            return
        if self._seen.get(key) != signature:
            if len(self._seen) >= _SEEN_PER_NUMBER * capacity:  # most have names that are used once
                self._seen.clear()
            self._seen[key] = signature
            return
        table = self._repetitions.get(process_set)
        if table is None:
            table = self._repetitions[process_set] = Repetitions(self.sets[process_set])
        if len(table.rows) < capacity and table.number(name, signature):
            new.append((name, signature))

    # What is ready.

    def _mark_ready(self, pending: _Pending) -> None:
        if not pending.ready:
            pending.ready = True
            self._ready.append(pending)

    def _recheck(self, pending: _Pending) -> None:
        """Refuse a collective whose process set, or a rank of it, is gone; release one that only lacks joined ranks."""
        process_set, _, name = pending.key
        members = self.sets.get(process_set, ())
        left = self.left.intersection(members)
        if not members:
            self._refuse(pending, f"process set {process_set}: expected a registered one, but it was removed")
        elif left:
            self._refuse(pending, f"{name!r} needs rank {min(left)}, which has shut down")
        elif all(rank in pending.requests or rank in self.joined for rank in members):
            self._mark_ready(pending)

    def _refuse_confused(self, key: Key, num_ranks: int) -> None:
        """Refuse collectives of one name and different kinds if every rank waits in one of them, so that none can run.

        One name may be in flight in several kinds, but then their ranks do not all block.
        """
        process_set, _, name = key
        self._write_out_name(process_set, name)
        found = [self.pending.get((process_set, kind, name)) for kind in range(len(KINDS))]
        confused = [pending for pending in found if pending is not None]
        blocked = {
            rank: signature
            for pending in confused
            for rank, (signature, request) in pending.requests.items()
            if request.blocks
        }
        if len(confused) > 1 and len(blocked) == num_ranks:
            for pending in confused:
                self._refuse(pending, describe_mismatch(name, blocked), mismatch=True)

    def _recheck_all(self) -> None:
        for pending in list(self.pending.values()):
            if not pending.ready:
                self._recheck(pending)

    def _join(self, rank: int, pending: _Pending) -> None:
        if pending.ready:
            self.joined.clear()
        elif not self.left:
            self._write_out_all()
            self.joined.add(rank)
            self._recheck_all()

    def _withdraw(self, rank: int, key: Key) -> None:
        pending = self.pending.get(key)
        if pending is not None and not pending.ready:
            pending.requests.pop(rank, None)
            if pending.requests:
                pending.signature, _ = next(iter(pending.requests.values()))
            else:
                del self.pending[key]

    def _leave(self, rank: int) -> None:
        self._write_out_all()
        self.left.add(rank)
        self.joined.clear()
        self._recheck_all()
        if len(self.left) == self.size:
            self._responses.append(Response(range(self.size), AllLeft()))

    # Responses to the ranks.

    def respond(self) -> list[Response]:
        """Return the responses that have not been sent, in the order in which all ranks must run them."""
        repeated: list[Response] = []
        if self._ready_bits:
            for process_set, bits in self._ready_bits.items():
                repeated.append(Response(self.sets[process_set], RunRepeated(process_set, bits)))
            self._ready_bits = {}
        if not self._ready and not self._responses:
            return repeated
        ready = self._ready_responses()
        refused, self._responses = self._responses, []
        return [*repeated, *refused, *ready]

    def _ready_responses(self) -> list[Response]:
        responses: list[Response] = []
        ready, self._ready = self._ready, []
        run: Run | None = None  # the last response, if the next collective can be added to it
        new: dict[int, list[tuple[str, Signature]]] = {}  # all-reduces that get numbers
        for pending in ready:
            process_set, _, name = pending.key
            if process_set not in self.sets:  # removed by an earlier one of this loop
                self._recheck(pending)
                continue
            del self.pending[pending.key]
            if self._timeline.active:
                self._timeline.end([name])
            kind, members = pending.signature.kind, self.sets[process_set]
            complete = len(pending.requests) == len(members)
            problem = None if complete and pending.alike else self._problem(pending, members)
            if problem is not None:
                responses.append(Response(members, problem))
                run = None
                continue
            if kind == STALL_REPORT:
                continue
            extra, payload = self._attachments(pending, members)
            if run is None or run.kind != kind or run.process_set != process_set:
                run = Run(kind, process_set, [], [], [], {})
                responses.append(Response(members, run))
            run.names.append(name)
            run.extras.append(extra)
            run.payloads.append(payload)
            if not complete:
                run.absent[name] = tuple(pending.signature)
            elif kind == ALLREDUCE and payload is None and extra is None and len(members) > 1:
                self._number(process_set, name, pending.signature, new.setdefault(process_set, []))
            if kind in (ADD_SET, REMOVE_SET):
                run = None
        for process_set, rows in new.items():
            if rows and process_set in self.sets:
                first = len(self._repetitions[process_set].rows) - len(rows)
                numbered = Number(process_set, first, [(name, tuple(signature)) for name, signature in rows])
                responses.append(Response(self.sets[process_set], numbered))
        return responses

    def _problem(self, pending: _Pending, members: tuple[int, ...]) -> Refuse | None:
        """Return why a collective cannot run that all ranks, except for joined ones, have requested."""
        name, signature = pending.key[2], pending.signature
        signatures = {rank: own for rank, (own, _) in pending.requests.items()}
        if len(set(signatures.values())) > 1:
            return Refuse(*pending.key, True, describe_mismatch(name, signatures))
        absent = [rank for rank in members if rank not in pending.requests]
        text = ""
        if absent and signature.kind not in (ALLREDUCE, BARRIER, STALL_REPORT):
            text = (
                f"{KINDS[signature.kind]} {name!r} cannot run while ranks {absent} have joined and have nothing to "
                "contribute; use allreduce, or call it before join"
            )
        elif absent and signature.kind == ALLREDUCE and signature.operation not in (SUM, AVERAGE, ADASUM):
            text = (
                f"allreduce {name!r}: expected Average, Sum or Adasum while ranks {absent} have joined, "
                "since they contribute zeros; use one of these"
            )
        return Refuse(*pending.key, False, text) if text else None

    def _attachments(self, pending: _Pending, members: tuple[int, ...]) -> tuple[Any, Payloads]:
        """Return the extra that the ranks need to run a collective, and the payloads if all ranks have sent them."""
        signature, requests = pending.signature, pending.requests
        if signature.kind == JOIN:
            return next(reversed(requests)), None  # the rank that joined last
        if signature.kind == ADD_SET:
            number = self._next_set
            self._next_set += 1
            self.sets[number] = signature.ranks
            return number, None
        if signature.kind == REMOVE_SET:
            removed = [number for number, ranks in self.sets.items() if number > 0 and ranks == signature.ranks]
            for number in removed:
                if number in self._repetitions:
                    self._write_out(number)
                del self.sets[number]
            self._recheck_all()
            return removed, None
        if signature.kind == ALLREDUCE and signature.shapes and next(iter(requests.values()))[1].payload is None:
            return None, None  # the usual case of a large tensor
        in_order = [requests[rank][1] if rank in requests else None for rank in members]
        extras = [None if request is None else request.extra for request in in_order]
        payloads = [None if request is None else request.payload for request in in_order]
        complete = all(request is None or request.payload is not None for request in in_order)
        return (extras if any(extra is not None for extra in extras) else None), (payloads if complete else None)

    def _refuse(self, pending: _Pending, text: str, *, mismatch: bool = False) -> None:
        del self.pending[pending.key]
        self._responses.append(Response(list(pending.requests), Refuse(*pending.key, mismatch, text)))

    # Stalls.

    def check_stalls(self) -> str | None:
        """Log the collectives that have waited too long; return a text if the world must be shut down for one."""
        limit, end = self._settings.stall_seconds, self._settings.stall_shutdown_seconds
        if not (limit or end):
            return None
        now = time.monotonic()
        waiting = [oldest for table in self._repetitions.values() if (oldest := table.oldest) is not None]
        if waiting:
            waiting += [pending.since for pending in self.pending.values()]
            if min(waiting) < now - self._settings.first_stall_seconds:
                self._write_out_all()
        if not self.pending:
            return None
        for (process_set, kind, name), pending in self.pending.items():
            age = now - pending.since
            members = self.sets.get(process_set, ())
            missing = [rank for rank in members if rank not in pending.requests and rank not in self.joined]
            if not missing or kind == JOIN:  # a join may wait for the others as long as it takes
                continue
            story = (
                f"{KINDS[kind]} {name!r} was submitted by ranks "
                f"{sorted(pending.requests)} {age:.0f} s ago and not by ranks {missing}"
            )
            for other in range(len(KINDS)):
                confused = self.pending.get((process_set, other, name)) if other != kind else None
                if confused is not None and not confused.requests.keys().isdisjoint(missing):
                    story += f", which submitted {KINDS[other]} {name!r}"
            if end and age > end:
                return f"stalled: {story}; ended by the limit of {end:g} s (--stall-timeout)"
            if limit and now - pending.reported > limit and age > limit:
                pending.reported = now
                _log.warning("stalled: %s; they may have ended, taken another branch, or be slower", story)
        return None
