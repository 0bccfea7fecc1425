"""A deadline, as ``horovod.runner.common.util.timeout``."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """The time of a :class:`Timeout` is over."""


class Timeout:
    """A time limit that begins when it is made.

    Args:
        timeout: the limit in seconds.
        message: the text of the error; ``{timeout}`` stands for the limit and ``{activity}`` for what took too long.

    >>> Timeout(60, "{activity} took more than {timeout} s").check_time_out_for("the start")
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout, self._message = timeout, message
        self._timeout_at = time.time() + timeout

    def remaining(self) -> float:
        """Return the seconds that are left, 0 when the time is over."""
        return max(0.0, self._timeout_at - time.time())

    def timed_out(self) -> bool:
        """Return whether the time is over."""
        return time.time() > self._timeout_at

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException if the time is over."""
        if self.timed_out():
            raise TimeoutException(self._message.format(timeout=self._timeout, activity=activity))
