"""The watcher of a worker: a thread that notices, reports and ends the stalls of this worker's collectives."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from torch.distributed.distributed_c10d import PrefixStore, Store

from rueda.world.stall.flight_recorder import Dump
from rueda.world.stall.limits import DUMP, EXIT_STATUS, PREFIX, StallLimits
from rueda.world.stall.peers import Message, Peers
from rueda.world.stall.report import RankState, rank_states, report, summary
from rueda.world.stall.stacks import offer_stacks, own_place, own_stacks, withdraw_stacks
from rueda.world.stall.waits import Source, TorchCollectives, Wait

_LOOK_SECONDS = (0.05, 5.0)  # the shortest and the longest time between two looks
_AFTER_THE_FIRST_SECONDS = 3.0  # the rank that tells why the job ends is the first to end
_OTHER_ENDS_SECONDS = 30.0  # for so long another rank that ends explains a stall
_LOWER_RANKS = 8  # asked at once
_DUMP_SECONDS = 4.0  # less than an answer may take

_current: Watcher | None = None


class Watcher:
    """Watches the collectives of some sources.

    Args:
        store: the store of the process group.
        rank: the rank of this worker.
        size: the number of workers.
        local: whether all workers are on this host.
        limits: the limits of torch's own collectives; other sources have their own.
        dump: the folder into which each rank writes its flight recorder at a stall; None: nowhere.
        give_up: ends this process, or its collectives, when one of torch's own stalls.
    """

    def __init__(
        self, store: Store, rank: int, size: int, *, local: bool, limits: StallLimits, dump: str | None = None,
        give_up: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.sources: list[Source] = [TorchCollectives(limits, give_up)]
        self.declared = ""  # what this worker does while the others wait for it, as the program wants
        self._stacks = offer_stacks()
        self._dump = Dump(dump, rank, lambda text: _say(f"{PREFIX}{text}"))
        self._peers = Peers(store, rank, size, local=local, answer=self._answer, stacks=self._stacks)
        self._told: dict[int, list[object]] = {}  # by source: the collective that was reported
        self._look_again: dict[int, float] = {}  # by source: when to ask again whether the stall must end
        self._other_ended = -math.inf  # when another rank said that it reports the stall and ends
        self._stopped = threading.Event()
        self._changed = threading.Event()  # a source was added, which may have shorter limits; or it is stopped
        self._thread = threading.Thread(target=self._watch, name="rueda stall watcher", daemon=True)
        self._thread.start()

    def add(self, source: Source) -> None:
        """Watch another source."""
        self.sources.append(source)
        self._changed.set()

    def remove(self, source: Source) -> None:
        """Stop watching a source, and forget its ``id``, which a later one may get."""
        if source in self.sources:
            self.sources.remove(source)
        self._told.pop(id(source), None)
        self._look_again.pop(id(source), None)

    def stop(self) -> None:
        """Stop watching, and stop answering the other workers."""
        self._stopped.set()
        self._changed.set()
        self._peers.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
        withdraw_stacks(self._stacks)
        self._stacks = None

    def _watch(self) -> None:
        while True:
            if self._changed.wait(self._pause()):
                self._changed.clear()
            if self._stopped.is_set():
                return
            for source in list(self.sources):
                try:
                    self._look(source)
                except Exception as error:  # a defect here must not end the training, and is told once
                    self.remove(source)
                    _say(f"{PREFIX}{type(source).__name__} is not watched any more ({type(error).__name__}: {error})\n")

    def _pause(self) -> float:
        shortest, longest = _LOOK_SECONDS
        given = [
            seconds for source in self.sources for seconds in (source.limits.warning, source.limits.timeout) if seconds
        ]
        return max(shortest, min(longest, min(given, default=longest) / 4))

    def _look(self, source: Source) -> None:
        waits = source.waits()
        told = self._told.get(id(source))
        if not waits:
            if told is not None and self._told.pop(id(source)) and told[0]:
                _say(f"{PREFIX}over: the collective has ended\n")
            return
        wait = min(waits, key=lambda one: one.since)
        seconds = time.monotonic() - wait.since
        limits = source.limits
        if limits.timeout and seconds > limits.timeout:
            if time.monotonic() >= self._look_again.get(id(source), 0.0):
                self._look_again[id(source)] = time.monotonic() + max(1.0, limits.warning)
                self._end(source, wait, seconds)
        elif limits.warning and seconds > limits.warning and (told is None or told[1] != wait.key):
            tells = not self._lower_rank_waits(limits.warning)
            self._told[id(source)] = [tells, wait.key]
            if tells:
                states = self._ask_all(wait)
                peers = self._peers.known
                _say(report(wait, seconds, self._peers.rank, states, peers, limits.timeout, self._dump.remark))

    def _lower_rank_waits(self, warning: float) -> bool:
        """Return whether a rank below this one waits as well, so that it is the one to report."""
        for start in range(0, self._peers.rank, _LOWER_RANKS):
            lower = range(start, min(self._peers.rank, start + _LOWER_RANKS))
            answers = self._peers.ask(lower, {"key": None, "stack": False})
            if any(seconds > warning / 2 for answer in answers.values() for _, seconds, _ in answer["waits"]):
                return True
        return False

    def _end(self, source: Source, wait: Wait, seconds: float) -> None:
        """End a stalled collective, unless all ranks that it waits for are at work that may take longer."""
        states = self._ask_all(wait)
        missing = [state for state in states if state.missing]
        if missing and all(_may_go_on(state, source) for state in missing):
            return
        text = f"{summary(wait, seconds, states)}; ended by the time limit (--stall-timeout, 0 for none)"
        if self._other_ends() or self._lower_rank_waits(source.limits.warning) or self._other_ends():
            self._stopped.wait(_AFTER_THE_FIRST_SECONDS)
        else:
            _say(f"{PREFIX}{text}\n")
            # The launcher ends the others after this one: they write their flight recorders now, and report nothing.
            self._peers.ask(self._others(), {"key": None, "stack": False, "ends": True})
        self._dump.finish()
        self._told.pop(id(source), None)  # that it has ended is said
        source.give_up(text)

    def _other_ends(self) -> bool:
        return time.monotonic() - self._other_ended < _OTHER_ENDS_SECONDS

    def _ask_all(self, wait: Wait) -> list[RankState]:
        question = {"key": wait.key, "stack": True}
        peers = self._peers
        answers = peers.ask(self._others(), question)
        return rank_states(wait, {**answers, peers.rank: self._answer(question)}, peers.known, socket.gethostname())

    def _others(self) -> list[int]:
        return [rank for rank in range(self._peers.size) if rank != self._peers.rank]

    def _answer(self, question: Message) -> Message:
        """Answer another worker: what is under way here, and whether this rank has begun the collective of ``key``."""
        key, now = question["key"], time.monotonic()
        if question["stack"]:
            self._dump.begin()
        if question.get("ends"):
            self._other_ended = now
            self._dump.finish(_DUMP_SECONDS)
        waits = [wait for source in list(self.sources) for wait in source.waits()]
        reached = [source.reached(key) for source in list(self.sources)] if key else []
        return {
            "waits": [[wait.what, now - wait.since, wait.key] for wait in waits],
            "reached": next((found for found in reached if found is not None), None),
            "declared": self.declared,
            "place": own_place(),
            "stack": own_stacks() if question["stack"] else "",
        }


def _may_go_on(state: RankState, source: Source) -> bool:
    return state.declared or (state.at_work and not source.ends_busy)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error is closed
        sys.stderr.write(text)
        sys.stderr.flush()


def end_process(text: str) -> NoReturn:
    """End this process at once: its main thread is in C++ code, from which no exception can call it back."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(EXIT_STATUS)


def start(
    store: Store, rank: int, size: int, *, local: bool, limits: StallLimits, number: int = 0,
    give_up: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Start the watcher of this process; ``number`` is new wherever a store is used again, and the same on all ranks.

    The other arguments are those of :class:`Watcher`.
    """
    global _current
    if limits.warning or limits.timeout:
        own = PrefixStore(f"rueda/stall/{number}", store)
        dump = os.environ.get(DUMP)
        _current = Watcher(own, rank, size, local=local, limits=limits, dump=dump, give_up=give_up or end_process)


def stop() -> None:
    """Stop the watcher, if one runs."""
    global _current
    ended, _current = _current, None
    if ended is not None:
        ended.stop()


def watch(source: Source) -> None:
    """Let the watcher of this process, if one runs, watch another source of collectives."""
    if _current is not None:
        _current.add(source)


def unwatch(source: Source) -> None:
    """Undo :func:`watch`."""
    if _current is not None:
        _current.remove(source)


@contextlib.contextmanager
def declared_work(what: str) -> Iterator[None]:
    """Declare that this worker does something for which the others wait, however long it takes."""
    watcher = _current
    if watcher is None:
        yield
        return
    watcher.declared = what
    try:
        yield
    finally:
        watcher.declared = ""
