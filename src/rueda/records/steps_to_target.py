"""Updates and examples to a target accuracy against the batch size, as ``steps.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from rueda.records.batch_curve import BatchCurve
from rueda.records.json_record import FORMAT, JsonRecord, demand, demand_numbers


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """One batch size."""

    batch: int
    rate: float | None
    """the best of the grid; None if no rate reached the target"""
    updates: float | None
    """mean over the seeds that reached the target"""
    examples: float | None
    num_seeds: int
    """trainings at that rate"""
    seeds: tuple[float, ...]
    """updates of those that reached the target"""
    tried: tuple[tuple[float, float | None], ...]
    """(rate, updates) of the grid; None: diverged, given up, or not reached"""

    @property
    def complete(self) -> bool:
        """Whether every seed reached the target: of the others nobody knows how many updates they need."""
        return self.updates is not None and len(self.seeds) == self.num_seeds


@dataclass(frozen=True, kw_only=True)
class StepsToTarget(JsonRecord):
    """Updates against batch size, and the curve through them."""

    FILE: ClassVar = "steps.json"
    NOUN: ClassVar = "steps to a target"
    COMMAND: ClassVar = "rueda steps-to-target TASK"

    task: str
    target_accuracy: float
    recipe: str
    """the base recipe of all trainings as TOML"""
    epochs: int
    """after which a training is given up"""
    task_file: str | None = None
    """SHA-256 of the file that defines the task; None for a built-in one, and in older files"""
    points: tuple[BatchPoint, ...]
    fit: BatchCurve | None = None
    """through the batch sizes of which every seed reached the target; None if those are fewer than three"""
    environment: dict[str, Any] = field(default_factory=dict)
    kind: str = "steps-to-target"
    format: int = FORMAT

    def regime(self, batch: float) -> str | None:
        """Name the regime of a batch size; None without a fit."""
        return None if self.fit is None else self.fit.regime(batch)

    def contents(self) -> dict[str, Any]:
        """Give the fields, and with each point its regime and whether it is one of those fitted."""
        values = super().contents()
        for point, written in zip(self.points, values["points"], strict=True):
            written |= {"in_fit": point.complete, "regime": self.regime(point.batch)}
        return values

    def check(self) -> None:
        """Refuse batches, updates and constants that are not positive."""
        demand(0 < self.target_accuracy <= 1, "steps.target_accuracy", "a fraction", self.target_accuracy)
        for index, point in enumerate(self.points):
            above = ("batch", "num_seeds", "rate", "updates", "examples")
            demand_numbers(point, f"steps.points[{index}]", above=above)
        if self.fit is not None:
            demand_numbers(self.fit, "steps.fit", above=("smallest_updates", "smallest_examples", "critical_batch"))
            low, high = self.fit.interval
            demand(0 < low <= high < float("inf"), "steps.fit.interval", "two batch sizes", self.fit.interval)
