"""The options of an elastic job. One time-out is for people to set; the other limits follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rueda.errors import LaunchError

TIMEOUT_SECONDS = 30.0
WAIT_SECONDS = 600.0
COOLDOWN_SECONDS = (60.0, 3600.0)
STRIKES = 3
"""so many failures on a host, with less than ten minutes between them, exclude it for a while"""
STRIKE_SECONDS = 600.0
_BEATS = 6.0
_STARTS = 4.0
_STALLS = 20.0
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, kw_only=True)
class ElasticSettings:
    """How many workers an elastic job may have, and how patient it is.

    Args:
        least: the job waits for hosts while it has fewer workers than this (``--min-np``).
        most: the job never has more workers than this (``--max-np``).
        wanted: the job starts as soon as so many workers can run (``-np``); by default ``most``.
        restarts: how many failures are survived (``--restarts``); None for any number.
        timeout: seconds after which a host or a worker that does not answer is given up (``--timeout``).
        wait: seconds that a job with too few workers waits for hosts (``--elastic-timeout``).
        discovery: a program that lists the hosts, one per line, as ``server1:4``; it is run every second.
        slots: the slots of discovered hosts that are listed without a number.
        cooldown: the shortest and the longest time, in seconds, for which a host that fails repeatedly is not used.

    >>> settings = ElasticSettings(least=1, most=8)
    >>> settings.beat_seconds, settings.start_seconds, settings.stall_seconds
    (5.0, 120.0, 600.0)
    """

    least: int = 1
    most: int
    wanted: int | None = None
    restarts: int | None = None
    timeout: float = TIMEOUT_SECONDS
    wait: float = WAIT_SECONDS
    discovery: str | None = None
    slots: int = 1
    cooldown: tuple[float, float] = COOLDOWN_SECONDS

    def __post_init__(self) -> None:
        if self.least < 1:
            raise LaunchError("--min-np", expected="1 or more", got=self.least, do="correct it")
        if self.most < self.least:
            raise LaunchError(
                "--max-np", expected=f"at least --min-np, {self.least}", got=self.most, do="raise it or lower --min-np"
            )
        if self.wanted is not None and not self.least <= self.wanted <= self.most:
            raise LaunchError(
                "-np", expected=f"a number from --min-np to --max-np, {self.least} to {self.most}", got=self.wanted,
                do="correct one of them",
            )  # fmt: skip
        if self.restarts is not None and self.restarts < 0:
            raise LaunchError("--restarts", expected="0 or more", got=self.restarts, do="correct it")
        for option, seconds in (("--timeout", self.timeout), ("--elastic-timeout", self.wait)):
            if not 0 < seconds < 1e9:
                raise LaunchError(option, expected="a positive number of seconds", got=seconds, do="correct it")
        if not 0 < self.cooldown[0] <= self.cooldown[1] < 1e9:
            raise LaunchError(
                "--blacklist-cooldown-range", expected="two numbers of seconds, the shorter first", got=self.cooldown,
                do="correct it",
            )  # fmt: skip

    @property
    def beat_seconds(self) -> float:
        """How often the driver and an agent tell each other that they live."""
        return self.timeout / _BEATS

    @property
    def start_seconds(self) -> float:
        """How long the workers of a new start, which first load their libraries, wait for each other."""
        return self.timeout * _STARTS

    @property
    def stall_seconds(self) -> float:
        """How long a collective may take before the workers that wait in it give it up (``--stall-timeout``)."""
        return self.timeout * _STALLS

    def worker_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the limits of the workers that follow from the time-out, unless the user has set them."""
        derived = {
            "RUEDA_TIMEOUT": f"{self.start_seconds:g}",
            "RUEDA_STALL_TIMEOUT": f"{self.stall_seconds:g}",
        }
        return {name: value for name, value in derived.items() if not environ.get(name)}


def pause_before(num_failures: int) -> float:
    """Return the seconds before what has failed so often in a row is tried again: at once, then 1, 2, 4 ... 30.

    >>> [pause_before(number) for number in (0, 1, 2, 3, 4, 10)]
    [0.0, 0.0, 1.0, 2.0, 4.0, 30.0]
    """
    return 0.0 if num_failures < 2 else min(_LONGEST_PAUSE, 2.0 ** (num_failures - 2))
