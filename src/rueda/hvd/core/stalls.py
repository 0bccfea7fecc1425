"""The collectives of the engine for the watcher of this worker (:mod:`rueda.world.stall`).

The coordinator on rank 0 reports what some ranks have not submitted, and ends it after
``HOROVOD_STALL_SHUTDOWN_TIME_SECONDS``. The watcher of every rank adds what the coordinator cannot: the Python stacks,
transfers that do not end, and a rank, perhaps rank 0 itself, that does not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.hvd.common.exceptions import StallError
from rueda.hvd.core.entries import JOIN, KINDS, Entry
from rueda.world.stall.limits import StallLimits
from rueda.world.stall.waits import Key, Wait

if TYPE_CHECKING:
    from rueda.hvd.core.engine import Engine


class EngineCollectives:
    """The collectives that an engine has submitted, is transferring, or waits for in an optimizer's step."""

    ends_busy = False  # the coordinator decides about ranks that are at work

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.limits = StallLimits(
            warning=engine.settings.stall_seconds,
            timeout=engine.settings.silence_seconds,
        )
        self._given_up: list[Key] = []

    def waits(self) -> list[Wait]:
        """Return all collectives that are in flight, except a join, which may take as long as the others train."""
        if self._engine.failure is not None:  # they end as soon as their threads notice it
            return []
        found = [
            Wait(what=f"{KINDS[entry.signature.kind]} {entry.name!r}", since=entry.since, key=_key(entry))
            for entry in self._open()
            if entry.signature.kind != JOIN
        ]
        step = self._engine.waiting_step
        if step is not None:
            found.append(Wait(what=f"the all-reduce of {step[0]}", since=step[1], key=["hvd", step[0]]))
        return found

    def _open(self) -> list[Entry]:
        queue = self._engine.tensor_queue
        return [*queue.open_entries(), *self._engine.executor.running]

    def reached(self, key: Key) -> bool | None:
        """Return whether this rank has submitted a collective that has not ended, or that it has given up itself."""
        if key[0] != "hvd":
            return None
        return key in [*(_key(entry) for entry in self._open()), *self._given_up] if len(key) > 2 else None

    def give_up(self, text: str) -> None:
        """Let all collectives fail on all ranks."""
        self._given_up = [_key(entry) for entry in self._open()]  # the others do not wait for this rank
        self._engine.fail(StallError(text))


def _key(entry: Entry) -> Key:
    return ["hvd", *entry.key]
