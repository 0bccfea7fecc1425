"""The throughput of one worker at each local batch, as ``throughput.json``, and the batch that saturates the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rueda.records.json_record import JsonRecord, NotNegative, Positive, PositiveInt, one_of

SATURATED = 0.95
"""share of the best throughput at which a batch counts as saturating the device"""


@dataclass(frozen=True, kw_only=True)
class ThroughputPoint:
    """The throughput at one local batch."""

    batch: PositiveInt
    images_per_second: Positive
    """median over the repeats, or the best round: see :attr:`Throughput.statistic`"""
    spread: NotNegative
    """half the interquartile range, or the standard deviation, over the repeats: how noisy the machine is"""
    milliseconds_per_update: Positive
    """time of an update, which takes ``accumulate`` such batches"""


@dataclass(frozen=True, kw_only=True)
class Throughput(JsonRecord):
    """The throughput at each measured local batch."""

    FILE: ClassVar = "throughput.json"
    NOUN: ClassVar = "throughput against batch"
    COMMAND: ClassVar = "rueda throughput TASK"

    task: str
    points: tuple[ThroughputPoint, ...]
    unit: str = "images"
    """what is counted per second: images or examples"""
    statistic: Annotated[str, one_of("best", "median")] = "best"
    """``median`` and half the interquartile range, or ``best`` round and standard deviation (older files)"""
    kind: str = "throughput"

    @property
    def saturates_at(self) -> int | None:
        """The smallest batch that reaches 95 % of the best throughput; None if only the largest one does."""
        return saturation({point.batch: point.images_per_second for point in self.points})

    def contents(self) -> dict[str, Any]:
        """Return the fields, and the batch at which the throughput saturates."""
        return {**super().contents(), "saturates_at": self.saturates_at}


def counted_unit(unit: str) -> str:
    """Return the unit in which batches are counted: that of the task, but examples where the task counts tokens.

    >>> counted_unit("images"), counted_unit("tokens")
    ('images', 'examples')
    """
    return "examples" if unit == "tokens" else unit


def saturation(speeds: Mapping[int, float]) -> int | None:
    """Return the smallest batch that reaches 95 % of the best throughput.

    Where only the largest batch reaches it, a still larger one might be faster: the result is None.

    Args:
        speeds: throughput by local batch.

    >>> saturation({8: 322, 16: 485, 32: 575, 64: 628, 128: 652, 256: 657, 512: 680, 700: 683})
    128
    """
    if not speeds:
        return None
    smallest = min(batch for batch, speed in speeds.items() if speed >= SATURATED * max(speeds.values()))
    return smallest if smallest < max(speeds) else None
