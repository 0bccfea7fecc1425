"""The times after which a stall is reported and ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rueda.world.variables import read_number

WARNING, TIMEOUT, DUMP = "RUEDA_STALL_WARNING", "RUEDA_STALL_TIMEOUT", "RUEDA_STALL_DUMP"
EXIT_STATUS = 124  # as timeout(1) has it
PREFIX = "stall: "  # of every line of a report, so that the launcher shows it also where it shows rank 0 alone

GROUP_TIMEOUT = timedelta(days=7)
"""time limit of the process groups themselves: a watcher ends a stall earlier, and knows a download from a stall"""


@dataclass(frozen=True, kw_only=True)
class StallLimits:
    """Seconds that a collective may take before it is reported, and before the job ends; 0 for never."""

    warning: float = 60.0
    timeout: float = 1800.0


def read_limits(environ: Mapping[str, str]) -> StallLimits:
    """Read the limits from environment variables.

    >>> read_limits({"RUEDA_STALL_TIMEOUT": "0"})
    StallLimits(warning=60.0, timeout=0.0)
    >>> read_limits({"RUEDA_STALL_WARNING": "soon"})
    Traceback (most recent call last):
    rueda.errors.WorldError: RUEDA_STALL_WARNING: expected seconds, 0 for never, got 'soon'; correct or unset it
    """
    default = StallLimits()
    return StallLimits(
        warning=check_seconds(WARNING, environ.get(WARNING) or default.warning),
        timeout=check_seconds(TIMEOUT, environ.get(TIMEOUT) or default.timeout),
    )


def check_seconds(name: str, value: str | float) -> float:
    """Return a limit as a number; ``name`` is the variable or option that gave it."""
    return read_number(
        name, value, lambda seconds: 0 <= seconds < math.inf, expected="seconds, 0 for never", do="correct or unset it"
    )


def stall_variables(warning: float | None, timeout: float | None, dump: Path | None = None) -> dict[str, str]:
    """Return the environment variables of the options ``--stall-warning``, ``--stall-timeout`` and ``--stall-dump``.

    >>> stall_variables(10, None)
    {'RUEDA_STALL_WARNING': '10'}
    """
    given = (("--stall-warning", WARNING, warning), ("--stall-timeout", TIMEOUT, timeout))
    found = {name: f"{check_seconds(option, value):g}" for option, name, value in given if value is not None}
    return found if dump is None else {**found, DUMP: str(dump.absolute())}
