"""Which worker failed first, and its traceback.

When one worker fails, the others soon fail too, since they wait for it, and their tracebacks hide the cause. The first
failure is that of the worker whose traceback began first; a worker without a traceback counts from its end. A worker
that the kernel killed leaves no traceback, and those of the others begin at the same moment, so it is placed before
them.

A worker that ends with status 0 while others still need it does not fail itself, but they do: their connections to it
are closed. If the traceback of the first failure tells of a lost connection, the worker that left is named first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from rueda.world.rank_names import name_ranks
from rueda.world.signals import shell_status, signal_name
from rueda.world.stall.limits import EXIT_STATUS, PREFIX

_MOST_LINES = 60
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]:\s?")  # added by torch once a process group is open
_STALL = re.compile(r"\S*StallError: ")  # raised where a collective is given up, instead of ending the process
_CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
# The failure of another worker causes none of these; it may cause SIGABRT, since libraries abort on a lost peer.
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|remote (?:peer|process|end)|by peer|peer closed"
    r"|has (?:left|shut ?down|gone|exited)|shut ?down|DistNetworkError|DistStoreError|DistBackendError|ncclRemoteError",
    re.IGNORECASE,
)
LEFT_EARLY = "left early with exit status 0"
_OWN_FAULT = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that ended with an error of its own.

    Args:
        rank: the worker's rank.
        host: the host that it ran on.
        status: its exit status, or minus the number of the signal that ended it.
        ended: when the driver learned that it had ended, in seconds on the driver's clock.
        traceback: when its traceback began, or None.
        left: the ranks that had ended with status 0 before it ended.
        number: in an elastic job, the number of the process; its rank may have been that of others.
        killed: in an elastic job, why the launcher's agent has killed it, which is no failure of the worker's own.
    """

    rank: int
    host: str
    status: int
    ended: float
    traceback: float | None = None
    left: tuple[int, ...] = ()
    number: int | None = None
    killed: str = ""

    @property
    def exit_status(self) -> int:
        """The exit status as a shell reports it: 128 + n for signal n."""
        return shell_status(self.status)

    @property
    def began(self) -> float:
        """The time at which the failure began."""
        if -self.status in _OWN_FAULT:
            return self.ended - 1.0
        return self.ended if self.traceback is None else min(self.traceback, self.ended)


def first_of(failures: Iterable[Failure]) -> Failure:
    """Return the failure that began first.

    >>> a = Failure(rank=0, host="a", status=1, ended=5.0, traceback=4.9)
    >>> b = Failure(rank=3, host="b", status=3, ended=5.1, traceback=4.2)
    >>> first_of([a, b]).rank
    3
    """
    return min(failures, key=lambda failure: (failure.began, failure.rank))


def describe(failure: Failure, stderr: str) -> str:
    """Return which worker failed and how, followed by its traceback or else the end of its standard error.

    >>> print(describe(Failure(rank=2, host="server2", status=3, ended=0), "epoch 1\\nno such file"))
    rank 2 on server2 failed with exit status 3
    epoch 1
    no such file
    """
    first = summary(failure, stderr)
    if LEFT_EARLY in first:  # the victim's traceback, which its own output has shown, tells nothing of the cause
        return first
    return "\n".join([first, *last_traceback(stderr)])


def summary(failure: Failure, stderr: str = "") -> str:
    """Return in one line which worker failed and how, and which workers had left before it.

    >>> failure = Failure(rank=0, host="server1", status=1, ended=0, left=(1,))
    >>> summary(failure, "RuntimeError: Connection closed by peer")
    'rank 1 left early with exit status 0; rank 0 on server1, which still needed it, failed with exit status 1'
    >>> summary(failure, "ValueError: bad")
    'rank 0 on server1 failed with exit status 1 (rank 1 had left with exit status 0)'
    >>> summary(Failure(rank=0, host="server1", status=-9, ended=0, killed="since it was stopped for 60 s"))
    'rank 0 on server1 was killed by the launcher since it was stopped for 60 s'
    """
    if failure.killed:
        how = f"was killed by the launcher {failure.killed}"
    elif failure.status < 0:
        how = f"was ended by {signal_name(-failure.status)}"
        if -failure.status == signal.SIGKILL:
            how += " (if no user sent it, the host probably ran out of memory)"
    else:
        how = f"failed with exit status {failure.status}"
    who = f"rank {failure.rank} on {failure.host}"
    if not failure.left:
        return f"{who} {how}"
    left = name_ranks(failure.left)
    if -failure.status not in _OWN_FAULT and _LOST_PEER.search("\n".join(last_traceback(stderr))):
        them = "it" if len(failure.left) == 1 else "them"
        return f"{left} {LEFT_EARLY}; {who}, which still needed {them}, {how}"
    return f"{who} {how} ({left} had left with exit status 0)"


def is_lost_peer(text: str) -> bool:
    """Return whether an error tells of a peer that is gone, so that it is not the cause of a failure.

    >>> is_lost_peer("RuntimeError: Connection closed by peer"), is_lost_peer("ValueError: bad")
    (True, False)
    """
    return _LOST_PEER.search(text) is not None


def exit_status(failure: Failure, stderr: str) -> int:
    """Return the exit status of a job: that of its first failure, or 124 if this was an error raised at a stall.

    >>> failure = Failure(rank=0, host="a", status=1, ended=0)
    >>> exit_status(failure, "some.StallError: rank 1 does not answer"), exit_status(failure, "")
    (124, 1)
    """
    is_stall = failure.status == 1 and any(_STALL.match(line) for line in last_traceback(stderr))
    return EXIT_STATUS if is_stall else failure.exit_status


def last_traceback(stderr: str) -> list[str]:
    """Return the lines of the last traceback in a standard error, with the tracebacks that it is chained to.

    >>> last_traceback("step 1\\n[rank1]: Traceback (most recent call last):\\n[rank1]: ValueError: bad\\n")
    ['Traceback (most recent call last):', 'ValueError: bad']
    """
    lines = stderr.replace("\r", "\n").rstrip().split("\n") if stderr.strip() else []
    lines = [_TORCH_PREFIX.sub("", line) for line in lines]
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last):")]
    if lines and lines[-1].startswith(PREFIX):  # the rest of the report has been shown
        return lines[-1:]
    if not starts:
        return lines[-20:]
    start = starts.pop()
    while starts and any(line.startswith(_CHAINS) for line in lines[max(0, start - 3) : start]):
        start = starts.pop()
    chosen = lines[start:]
    if len(chosen) > _MOST_LINES:
        chosen = [*chosen[:5], "  ...", *chosen[6 - _MOST_LINES :]]
    return chosen
