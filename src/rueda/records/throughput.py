"""Images per second against the local batch of one worker, as ``throughput.json``, and where they saturate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rueda.records.json_record import FORMAT, JsonRecord, demand, demand_numbers

SATURATED = 0.95
"""share of the best images/s at which a batch counts as saturating the device"""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One local batch."""

    batch: int
    images_per_second: float
    """median over the repeats, or of the best round: see :attr:`Throughput.statistic`"""
    spread: float
    """half the distance between the quartiles, or the standard deviation, over the repeats: how noisy the machine is"""
    milliseconds_per_update: float
    """of ``accumulate`` such batches"""


@dataclass(frozen=True, kw_only=True)
class Throughput(JsonRecord):
    """Images/s against the local batch."""

    FILE: ClassVar = "throughput.json"
    NOUN: ClassVar = "throughput against batch"
    COMMAND: ClassVar = "rueda throughput TASK"

    task: str
    points: tuple[Speed, ...]
    statistic: str = "best"
    """``median`` and half the distance between the quartiles, or ``best`` round and standard deviation (older files)"""
    environment: dict[str, Any] = field(default_factory=dict)
    kind: str = "throughput"
    format: int = FORMAT

    @property
    def saturates_at(self) -> int | None:
        """The smallest batch that reaches 95 % of the best; None if only the largest does."""
        return saturation({point.batch: point.images_per_second for point in self.points})

    def contents(self) -> dict[str, Any]:
        """Give the fields, and where the throughput saturates."""
        return {**super().contents(), "saturates_at": self.saturates_at}

    def check(self) -> None:
        """Refuse batches and speeds that are not positive, and an unknown statistic."""
        demand(self.statistic in ("best", "median"), "throughput.statistic", "best or median", self.statistic)
        for index, point in enumerate(self.points):
            above = ("batch", "images_per_second", "milliseconds_per_update")
            demand_numbers(point, f"throughput.points[{index}]", above=above, from_zero=("spread",))


def saturation(speeds: Mapping[int, float]) -> int | None:
    """Find the smallest batch that reaches 95 % of the best images/s.

    Where only the largest batch does, nothing shows that a still larger one would not be faster: the answer is None.

    Args:
        speeds: images/s by local batch.

    >>> saturation({8: 322, 16: 485, 32: 575, 64: 628, 128: 652, 256: 657, 512: 680, 700: 683})
    128
    """
    if not speeds:
        return None
    smallest = min(batch for batch, speed in speeds.items() if speed >= SATURATED * max(speeds.values()))
    return smallest if smallest < max(speeds) else None
