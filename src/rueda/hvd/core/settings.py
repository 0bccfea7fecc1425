"""The ``HOROVOD_*`` environment variables of the core, which ``hvd.init`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rueda.errors import WorldError
from rueda.world.stall.limits import TIMEOUT, StallLimits, read_limits


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the core, one field for each environment variable.

    Args:
        fusion_bytes: ``HOROVOD_FUSION_THRESHOLD``: the size of the fusion buffer in which small tensors are reduced.
        cycle_seconds: ``HOROVOD_CYCLE_TIME`` (there in milliseconds): how long submissions are collected while
            no thread waits for them.
        cache_capacity: ``HOROVOD_CACHE_CAPACITY``: how many signatures are sent once and then referred to by number,
            and how many repeated all-reduces of a process set are negotiated by one bit.
        stall_seconds: ``HOROVOD_STALL_CHECK_TIME_SECONDS``, by default ``RUEDA_STALL_WARNING``: a tensor that waits
            longer for some ranks is reported; 0 (or ``HOROVOD_STALL_CHECK_DISABLE=1``): never.
        stall_shutdown_seconds: ``HOROVOD_STALL_SHUTDOWN_TIME_SECONDS``, by default ``RUEDA_STALL_TIMEOUT`` if that is
            set: after it all ranks raise an error; 0: never.
        silence_seconds: after this time all ranks raise an error if a rank that is missing does not even answer, as
            one that is stopped: ``stall_shutdown_seconds``, or else 30 minutes; 0: never.
        timeline: ``HOROVOD_TIMELINE``: the file to which the timeline is written.
        mark_cycles: ``HOROVOD_TIMELINE_MARK_CYCLES``: whether the timeline marks cycles.
    """

    fusion_bytes: int = 64 * 2**20
    cycle_seconds: float = 0.001
    cache_capacity: int = 1024
    stall_seconds: float = 60.0
    stall_shutdown_seconds: float = 0.0
    silence_seconds: float = StallLimits.timeout
    timeline: str | None = None
    mark_cycles: bool = False

    @property
    def first_stall_seconds(self) -> float:
        """The time after which a stall is first reported or shuts the world down; 0 for never.

        >>> Settings(stall_seconds=60.0, stall_shutdown_seconds=30.0).first_stall_seconds
        30.0
        """
        return min((s for s in (self.stall_seconds, self.stall_shutdown_seconds) if s), default=0.0)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings from environment variables.

    >>> read_settings({"HOROVOD_CYCLE_TIME": "5", "HOROVOD_STALL_CHECK_DISABLE": "1"}).cycle_seconds
    0.005
    >>> read_settings({"HOROVOD_FUSION_THRESHOLD": "much"})
    Traceback (most recent call last):
    rueda.errors.WorldError: HOROVOD_FUSION_THRESHOLD: expected a number, at least 0, got 'much'; ...
    """
    default, limits = Settings(), read_limits(environ)
    checks = not _flag(environ, "HOROVOD_STALL_CHECK_DISABLE")
    shutdown = _number(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", limits.timeout if environ.get(TIMEOUT) else 0.0)
    return Settings(
        fusion_bytes=int(_number(environ, "HOROVOD_FUSION_THRESHOLD", default.fusion_bytes)),
        cycle_seconds=_number(environ, "HOROVOD_CYCLE_TIME", default.cycle_seconds * 1000) / 1000,
        cache_capacity=int(_number(environ, "HOROVOD_CACHE_CAPACITY", default.cache_capacity)),
        stall_seconds=_number(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", limits.warning) if checks else 0.0,
        stall_shutdown_seconds=shutdown if checks else 0.0,
        silence_seconds=(shutdown or limits.timeout) if checks else 0.0,
        timeline=environ.get("HOROVOD_TIMELINE") or None,
        mark_cycles=_flag(environ, "HOROVOD_TIMELINE_MARK_CYCLES"),
    )


def _flag(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "0").lower() not in ("", "0", "false", "no")


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise WorldError(name, expected="a number, at least 0", got=text, do="correct or unset it")
    return value
