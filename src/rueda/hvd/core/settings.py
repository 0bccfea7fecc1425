"""The ``HOROVOD_*`` variables that the core obeys, read when the world is initialised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rueda.errors import WorldError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the core behaves; a field is a variable.

    Args:
        fusion_bytes: ``HOROVOD_FUSION_THRESHOLD``: small tensors travel together up to so many bytes.
        cycle_seconds: ``HOROVOD_CYCLE_TIME`` (there in milliseconds): how long submissions are collected while
            nobody waits for them.
        cache_capacity: ``HOROVOD_CACHE_CAPACITY``: how many signatures travel as a number once they were spelled out.
        stall_seconds: ``HOROVOD_STALL_CHECK_TIME_SECONDS``: a tensor that waits so long for some ranks is reported;
            0 (or ``HOROVOD_STALL_CHECK_DISABLE=1``): never.
        stall_shutdown_seconds: ``HOROVOD_STALL_SHUTDOWN_TIME_SECONDS``: after so long all ranks raise; 0: never.
        timeline: ``HOROVOD_TIMELINE``: the file that the timeline is written to; ``mark_cycles``:
            ``HOROVOD_TIMELINE_MARK_CYCLES``.
    """

    fusion_bytes: int = 64 * 2**20
    cycle_seconds: float = 0.001
    cache_capacity: int = 1024
    stall_seconds: float = 60.0
    stall_shutdown_seconds: float = 0.0
    timeline: str | None = None
    mark_cycles: bool = False

    @property
    def first_stall_seconds(self) -> float:
        """How long nothing may happen before a stall is reported or ends the world, whichever is first; 0: for ever.

        >>> Settings(stall_seconds=60.0, stall_shutdown_seconds=30.0).first_stall_seconds
        30.0
        """
        return min((s for s in (self.stall_seconds, self.stall_shutdown_seconds) if s), default=0.0)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the variables.

    >>> read_settings({"HOROVOD_CYCLE_TIME": "5", "HOROVOD_STALL_CHECK_DISABLE": "1"}).cycle_seconds
    0.005
    >>> read_settings({"HOROVOD_FUSION_THRESHOLD": "much"})
    Traceback (most recent call last):
    rueda.errors.WorldError: HOROVOD_FUSION_THRESHOLD: expected a number, at least 0, got 'much'; ...
    """
    default = Settings()
    checks = not _flag(environ, "HOROVOD_STALL_CHECK_DISABLE")
    return Settings(
        fusion_bytes=int(_number(environ, "HOROVOD_FUSION_THRESHOLD", default.fusion_bytes)),
        cycle_seconds=_number(environ, "HOROVOD_CYCLE_TIME", default.cycle_seconds * 1000) / 1000,
        cache_capacity=int(_number(environ, "HOROVOD_CACHE_CAPACITY", default.cache_capacity)),
        stall_seconds=_number(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", default.stall_seconds) if checks else 0.0,
        stall_shutdown_seconds=_number(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0) if checks else 0.0,
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
