"""A signal that stops the work: one exception, and one place where exit statuses become it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal stopped the work: Ctrl-C (SIGINT), SIGTERM or SIGHUP.

    >>> Stopped(signal.SIGTERM).exit_status
    143
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.signal = int(number)

    @property
    def exit_status(self) -> int:
        """The status that a shell gives to a program that a signal ended: 128 + its number."""
        return 128 + self.signal


def as_stopped(interrupt: KeyboardInterrupt) -> Stopped:
    """Give any KeyboardInterrupt as :class:`Stopped`; Python's own is Ctrl-C."""
    return interrupt if isinstance(interrupt, Stopped) else Stopped()


def shell_status(status: int) -> int:
    """Give the exit status of a process as a shell does; :mod:`subprocess` writes signal n as -n.

    >>> shell_status(2), shell_status(-9)
    (2, 137)
    """
    return status if status >= 0 else 128 - status


def raise_if_stopped(status: int) -> None:
    """Raise :class:`Stopped` if a process ended by a signal that asks to stop; any other status is no such thing.

    >>> raise_if_stopped(0), raise_if_stopped(2), raise_if_stopped(-signal.SIGKILL)
    (None, None, None)
    """
    number = shell_status(status) - 128
    if number in _SIGNALS:
        raise Stopped(number)


@contextmanager
def signals_raise_stopped() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise :class:`Stopped` inside the block; ignored ones (``nohup``) stay ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        wanted = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
        old = {number: signal.signal(number, stop) for number in wanted}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
