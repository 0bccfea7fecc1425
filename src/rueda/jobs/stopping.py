"""Signals that stop a job: the exception :class:`Stopped`, and its conversion from and to exit statuses.

What each signal asks for, and when it is only a repeat, is defined in :mod:`rueda.world.signals`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

from rueda.world.signals import HANDLED, REQUEUE_STATUS, STOPPING, Request, SignalFilter, exit_status, shell_status

_USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


class Stopped(KeyboardInterrupt):
    """Raised when a signal stopped a job: SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR2 or SIGPIPE.

    >>> Stopped(signal.SIGTERM).exit_status, Stopped(signal.SIGUSR2).exit_status
    (143, 75)

    Args:
        number: the signal.
        saved: whether the job has saved its state since, and has said so.
    """

    def __init__(self, number: int = signal.SIGINT, *, saved: bool = False) -> None:
        super().__init__()
        self.signal, self.saved = int(number), saved

    @property
    def exit_status(self) -> int:
        """The exit status that shells report for a program ended by a signal, 128 + its number; 75 for SIGUSR2."""
        return exit_status(self.signal)


def as_stopped(interrupt: KeyboardInterrupt) -> Stopped:
    """Convert a KeyboardInterrupt to :class:`Stopped`; a plain KeyboardInterrupt means SIGINT."""
    return interrupt if isinstance(interrupt, Stopped) else Stopped()


def raise_if_stopped(status: int, *, saved: bool = False) -> None:
    """Raise :class:`Stopped` if a process ended by SIGINT, SIGTERM, SIGHUP or SIGUSR2; otherwise do nothing.

    >>> raise_if_stopped(0), raise_if_stopped(2), raise_if_stopped(-signal.SIGKILL)
    (None, None, None)
    """
    number = int(signal.SIGUSR2) if status == REQUEUE_STATUS else shell_status(status) - 128
    if number in STOPPING:
        raise Stopped(number, saved=saved)


_raised: list[Stopped] = []  # by the handlers of the blocks that have not ended


@contextmanager
def signals_raise_stopped(save: Callable[[], None] | None = None) -> Iterator[None]:
    """Make the signals that stop a job raise :class:`Stopped` inside a block; SIGUSR1 calls ``save``.

    Code of a library may catch the exception and go on, as torch does while it imports NumPy. An error that leaves the
    block later, perhaps in consequence, is therefore raised as :class:`Stopped` as well.
    """
    signals, num_before = SignalFilter(), len(_raised)

    def handle(number: int, frame: FrameType | None) -> None:
        request = signals.request(number)
        if request is Request.SAVE:
            if save is not None:
                save()
        elif request is not None:
            _raised.append(Stopped(number))
            raise _raised[-1]

    try:
        with handled_signals(handle):
            yield
    except Exception as error:
        if len(_raised) > num_before:
            raise _raised[num_before] from error
        raise
    finally:
        del _raised[num_before:]


def import_numpy() -> None:
    """Import NumPy before torch does, which imports it from C++ and ignores a :class:`Stopped` that is raised there."""
    import_module("numpy")


def raise_if_caught() -> None:
    """Raise :class:`Stopped` again if the code inside a block of :func:`signals_raise_stopped` has caught it."""
    if _raised:
        raise _raised[-1]


@contextmanager
def handled_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals of :data:`rueda.world.signals.HANDLED` inside the block.

    SIGINT, SIGTERM and SIGHUP stay ignored where they are (``nohup``). SIGUSR1 and SIGUSR2 stay with the user's own
    handler where there is one. Only the main thread can set handlers; in other threads nothing changes.
    """
    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        old = {number: signal.signal(number, handler) for number in HANDLED if _is_free(number)}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


def _is_free(number: int) -> bool:
    """Return whether Rueda may handle a signal here."""
    now = signal.getsignal(number)
    if number in _USER_SIGNALS:  # nothing ignores them by custom, and by default they end the process
        return now in (signal.SIG_DFL, signal.SIG_IGN) or str(getattr(now, "__module__", "")).startswith("rueda.")
    return now is not signal.SIG_IGN
