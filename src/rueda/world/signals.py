"""What a signal asks of a job, and how much time the job has to obey.

=====================  ======================================================  ==============
signal                 what it asks                                            exit status
=====================  ======================================================  ==============
SIGINT, SIGTERM,       save and stop                                           128 + number
SIGHUP
SIGUSR1                save and go on                                          (goes on)
SIGUSR2                save and stop, in order to be started again later       75
=====================  ======================================================  ==============

``scancel`` and systemd send a signal to every process of a job, and the launcher passes its own copy on to the workers,
so that a process may get the same signal several times. Repeats within a second count as one signal, and a later
SIGTERM asks for nothing new: the job is stopping already. Only a second SIGINT, a second or more after the first, means
that a person does not want to wait: it ends the job at once.

Exit status 75 is ``EX_TEMPFAIL`` of ``sysexits.h``: the work is not finished, and starting it again continues it. The
batch script of ``rueda run --slurm`` requeues the job at this status.

After a signal the workers have ``RUEDA_GRACE`` seconds (``--grace``, by default 30) to save, or less if the scheduler
gives less (:mod:`rueda.world.launch.grace`).
"""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import Callable, Mapping

from rueda.world.variables import read_number

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
SAVING = signal.SIGUSR1
HANDLED = (*STOPPING, SAVING)
REQUEUE_STATUS = 75
GRACE_SECONDS = 30.0
_REPEAT_SECONDS = 1.0
_LONGEST_GRACE = 86_400.0


class Request(enum.Enum):
    """What a signal asks of a job."""

    SAVE = "save and go on"
    STOP = "save and stop"
    END = "end at once"


class SignalFilter:
    """Turns the signals that a process receives into requests, each of them once.

    >>> seconds = iter([0.0, 0.1, 0.2, 5.0, 6.0, 6.5, 7.5])
    >>> signals = SignalFilter(clock=lambda: next(seconds))
    >>> [signals.request(number) for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM)]
    [<Request.STOP: 'save and stop'>, None, None, None]
    >>> [signals.request(number) for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR1)]
    [<Request.END: 'end at once'>, <Request.SAVE: 'save and go on'>, <Request.SAVE: 'save and go on'>]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accepted: dict[int, float] = {}  # by number: when it last counted as a signal of its own

    def request(self, number: int) -> Request | None:
        """Return what a signal that has just arrived asks for; None if it repeats an earlier one."""
        now = self._clock()
        first = not any(stopping in self._accepted for stopping in STOPPING)
        before = self._accepted.get(number)
        if before is not None and now - before < _REPEAT_SECONDS:
            return None
        self._accepted[number] = now
        if number == SAVING:
            return Request.SAVE
        if first:
            return Request.STOP
        return Request.END if number == signal.SIGINT and before is not None else None


def exit_status(number: int) -> int:
    """Return the exit status of a job that a signal stopped.

    >>> exit_status(signal.SIGTERM), exit_status(signal.SIGUSR2)
    (143, 75)
    """
    return REQUEUE_STATUS if number == signal.SIGUSR2 else 128 + number


def shell_status(status: int) -> int:
    """Convert an exit status of :mod:`subprocess`, which is -n after signal n, to that of a shell, 128 + n.

    >>> shell_status(2), shell_status(-9)
    (2, 137)
    """
    return status if status >= 0 else 128 - status


def signal_name(number: int) -> str:
    """Return the name of a signal; those for real-time programs have none.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def grace_seconds(environ: Mapping[str, str]) -> float:
    """Return how many seconds the workers have to save after a signal: ``RUEDA_GRACE``, by default 30.

    >>> grace_seconds({}), grace_seconds({"RUEDA_GRACE": "90"})
    (30.0, 90.0)
    >>> grace_seconds({"RUEDA_GRACE": "nan"})
    Traceback (most recent call last):
    rueda.errors.WorldError: RUEDA_GRACE (--grace): expected seconds from 0 to 86,400, got 'nan'; correct it
    """
    text = environ.get("RUEDA_GRACE", "")
    return read_number(
        "RUEDA_GRACE (--grace)", text or GRACE_SECONDS, lambda seconds: 0 <= seconds <= _LONGEST_GRACE,
        expected="seconds from 0 to 86,400",
    )  # fmt: skip
