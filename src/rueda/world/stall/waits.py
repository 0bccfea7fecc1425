"""The collectives that are under way in this process.

torch's *flight recorder* notes every collective of every process group, those of DistributedDataParallel's backward
pass included, and whether it has ended; torch keeps it anyway. Reading it takes a fraction of a second, so it is read
only after the numbers of the last collectives have not changed for half the warning time, or half the timeout if that
is shorter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rueda.world.stall.limits import StallLimits

Key = list[Any]
"""identifies a collective on all ranks: plain values, since it is sent as JSON"""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A collective that is under way: a description, since when (``time.monotonic``), and its key."""

    what: str
    since: float
    key: Key


class Source(Protocol):
    """A part of the program that runs collectives."""

    limits: StallLimits
    ends_busy: bool
    """whether the timeout also applies while all missing ranks answer and are at work"""

    def waits(self) -> list[Wait]:
        """Return the collectives that are under way and may have been so for the warning time."""

    def reached(self, key: Key) -> bool | None:
        """Return whether this rank has begun a collective; None if that is unknown."""

    def give_up(self, text: str) -> None:
        """End the collectives that are under way, or this process."""


class TorchCollectives:
    """The collectives of torch.distributed's own process groups, from its flight recorder.

    Args:
        limits: the warning time and the timeout.
        give_up: ends this process.
    """

    ends_busy = True

    def __init__(self, limits: StallLimits, give_up: Callable[[str], None]) -> None:
        self.limits = limits
        self.give_up = give_up
        self._last: dict[str, int] = {}
        self._unchanged_since = time.monotonic()
        self._to_monotonic = time.monotonic() - time.time()

    def waits(self) -> list[Wait]:
        """Return the unfinished collectives, once none was begun for half the warning time or half the timeout.

        A change is noticed up to a quarter of that time late, which is still before another rank asks about it.

        torch notes when a collective began by the clock of the day. It is converted by the difference of the two clocks
        when the last collective was noticed: if the clock of the day is set meanwhile, nobody waits longer or shorter.
        """
        last, now = _last_begun(), time.monotonic()
        if last != self._last:
            self._last, self._unchanged_since, self._to_monotonic = last, now, now - time.time()
        shortest = min((seconds for seconds in (self.limits.warning, self.limits.timeout) if seconds), default=0.0)
        if not last or now - self._unchanged_since < shortest * 0.5:
            return []
        return [
            Wait(
                what=_describe(entry),
                since=min(self._unchanged_since, entry["time_created_ns"] / 1e9 + self._to_monotonic),
                key=["torch", entry["process_group"][0], 0 if entry["is_p2p"] else entry["collective_seq_id"]],
            )
            for entry in _trace(includeCollectives=True).get("entries", [])
            if not entry["retired"] and entry["process_group"][0]  # one without a name belongs to another source
        ]

    def reached(self, key: Key) -> bool | None:
        """Return whether this rank has begun the collective of this number."""
        if key[0] != "torch":
            return None
        _, group, number = key
        last = _last_begun()
        return last[group] >= number if number and group in last else None


def _trace(**which: bool) -> dict[str, Any]:
    from torch._C import _distributed_c10d

    read = getattr(_distributed_c10d, "_dump_fr_trace_json", None)  # not in old versions of torch
    found: dict[str, Any] = json.loads(read(onlyActive=False, **which)) if read is not None else {}
    return found


def _last_begun() -> dict[str, int]:
    """Return for each process group the number of the collective that was begun last."""
    status = _trace(includeCollectives=False).get("pg_status", {})
    return {group: int(numbers["last_enqueued_collective"]) for group, numbers in status.items()}


def _describe(entry: dict[str, Any]) -> str:
    name = entry["profiling_name"].rpartition(":")[2]
    shapes = [
        f"{kind.lower()}{shape}" for kind, shape in zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    ]
    more = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
    return f"{name} of {shapes[0]}{more}" if shapes else name
