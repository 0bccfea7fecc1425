"""Which worker failed first, and what it said.

When one worker fails, the others soon fail too, since they wait for it; what they say hides the cause. The first is
the one whose traceback began first, or, if it left none, that ended first. A worker that the kernel killed has left no
traceback, and those of the others begin in the same instant: it goes before them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_LINES = 60
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]:\s?")  # put by torch once a process group is open; the rank is told anyway
_CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
# Nobody else's failure ends a process in these ways; SIGABRT is missing, as libraries abort when a peer is lost.
_OWN_FAULT = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that ended with an error of its own.

    Args:
        rank: its rank.
        host: where it ran.
        status: its exit status; minus the number of the signal that ended it.
        ended: when the driver heard of its end, in seconds on the driver's clock.
        traceback: when its traceback began, or None.
    """

    rank: int
    host: str
    status: int
    ended: float
    traceback: float | None = None

    @property
    def exit_status(self) -> int:
        """The status that a shell would give: 128 + n for signal n."""
        return self.status if self.status > 0 else 128 - self.status

    @property
    def began(self) -> float:
        """When the trouble began."""
        if -self.status in _OWN_FAULT:
            return self.ended - 1.0
        return self.ended if self.traceback is None else min(self.traceback, self.ended)


def first_of(failures: Iterable[Failure]) -> Failure:
    """Choose the failure that came first.

    >>> a = Failure(rank=0, host="a", status=1, ended=5.0, traceback=4.9)
    >>> b = Failure(rank=3, host="b", status=3, ended=5.1, traceback=4.2)
    >>> first_of([a, b]).rank
    3
    """
    return min(failures, key=lambda failure: (failure.began, failure.rank))


def describe(failure: Failure, words: str) -> str:
    """Say who failed and how; then its traceback, or the end of its standard error.

    >>> print(describe(Failure(rank=2, host="server2", status=3, ended=0), "epoch 1\\nno such file"))
    rank 2 on server2 failed with exit status 3
    epoch 1
    no such file
    """
    return "\n".join([summary(failure), *last_traceback(words)])


def summary(failure: Failure) -> str:
    """Say in a line who failed and how."""
    if failure.status < 0:
        try:
            name = signal.Signals(-failure.status).name
        except ValueError:
            name = f"signal {-failure.status}"
        how = f"was ended by {name}"
        if -failure.status == signal.SIGKILL:
            how += " (if nobody sent it, the host ran out of memory)"
    else:
        how = f"failed with exit status {failure.status}"
    return f"rank {failure.rank} on {failure.host} {how}"


def last_traceback(words: str) -> list[str]:
    """Cut the last traceback, with those it is chained to, out of a standard error.

    >>> last_traceback("step 1\\n[rank1]: Traceback (most recent call last):\\n[rank1]: ValueError: bad\\n")
    ['Traceback (most recent call last):', 'ValueError: bad']
    """
    lines = words.replace("\r", "\n").rstrip().split("\n") if words.strip() else []
    lines = [_TORCH_PREFIX.sub("", line) for line in lines]
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last):")]
    if not starts:
        return lines[-20:]
    start = starts.pop()
    while starts and any(line.startswith(_CHAINS) for line in lines[max(0, start - 3) : start]):
        start = starts.pop()
    chosen = lines[start:]
    if len(chosen) > _MOST_LINES:
        chosen = [*chosen[:5], "  ...", *chosen[6 - _MOST_LINES :]]
    return chosen
