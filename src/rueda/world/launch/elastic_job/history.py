"""The failures of an elastic job so far: how many may still follow, how long to wait, and which repeats itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from rueda.world.launch.elastic_job.settings import pause_before
from rueda.world.launch.failure import is_lost_peer, last_traceback

_QUIET_SECONDS = 60.0  # without a failure, after which the next one counts as the first of a row


@dataclass
class FailureHistory:
    """Counts the failures of a job.

    Args:
        limit: how many are survived; None for any number.

    >>> history = FailureHistory(limit=2)
    >>> [history.count(now) for now in (0.0, 5.0, 9.0)], history.restart_at
    ([True, True, False], 11.0)
    >>> [history.repeats("ValueError: bad", step) for step in (7, 8, 7)]
    [False, False, True]
    """

    limit: int | None
    num_restarts: int = 0
    _num_in_a_row: int = 0
    _last: float = float("-inf")
    _errors: set[tuple[str, int | None]] = field(default_factory=set)

    def count(self, now: float) -> bool:
        """Count a failure, and return whether it is survived."""
        self._num_in_a_row = self._num_in_a_row + 1 if now - self._last < _QUIET_SECONDS else 1
        self._last = now
        self.num_restarts += 1
        return self.limit is None or self.num_restarts <= self.limit

    def repeats(self, error: str, step: int | None) -> bool:
        """Return whether a worker failed with the same error at the same step before.

        Errors that tell of a lost peer are the consequence of another failure, and never repeat anything.
        """
        if is_lost_peer(error):
            return False
        known = (error, step) in self._errors
        self._errors.add((error, step))
        return known

    @property
    def restart_at(self) -> float:
        """When all workers may start anew."""
        return self._last + pause_before(self._num_in_a_row)

    @property
    def number(self) -> str:
        """The number of the last restart, and of how many."""
        return f"restart {self.num_restarts}" + ("" if self.limit is None else f" of {self.limit}")


def last_line(stderr: str) -> str | None:
    r"""Return the last line of the last traceback on a standard error, or None without one.

    >>> last_line("step 1\nTraceback (most recent call last):\n  ...\nValueError: bad\n"), last_line("killed")
    ('ValueError: bad', None)
    """
    lines = last_traceback(stderr)
    return lines[-1].strip() if lines and lines[0].startswith("Traceback") else None
