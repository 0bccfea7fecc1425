"""How many updates and examples a target, such as an accuracy, needs at each batch size, as ``steps.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rueda.records.batch_curve import BatchCurve
from rueda.records.json_record import JsonRecord, Positive, PositiveInt, Rule, demand
from rueda.records.metric import ACCURACY, MetricInfo
from rueda.records.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """The trainings at one batch size."""

    batch: PositiveInt
    rate: Positive | None
    """the learning rate of the grid that needed the fewest updates; None if no rate reached the target"""
    updates: Positive | None
    """mean over the seeds that reached the target"""
    examples: Positive | None
    num_seeds: PositiveInt
    """how many trainings were made at that rate"""
    seeds: tuple[float, ...]
    """the updates of each training that reached the target"""
    tried: tuple[tuple[float, float | None], ...]
    """(rate, updates) of the grid; None: diverged, given up, or not reached"""

    @property
    def complete(self) -> bool:
        """Whether every seed reached the target; a seed that did not needs an unknown number of updates."""
        return self.updates is not None and len(self.seeds) == self.num_seeds


@dataclass(frozen=True, kw_only=True)
class StepsToTarget(JsonRecord):
    """The updates to the target at each batch size, and the curve fitted to them."""

    FILE: ClassVar = "steps.json"
    NOUN: ClassVar = "steps to a target"
    COMMAND: ClassVar = "rueda steps-to-target TASK"

    task: str
    target_accuracy: Annotated[float, Rule("a fraction", lambda value: 0 < value <= 1)] | None = None
    """the accuracy to reach; None where the target is a value of another metric"""
    metric: MetricInfo = ACCURACY
    """what the target is a value of; the accuracy in older files"""
    target: float | None = None
    """the value to reach, where the metric is not the accuracy"""
    recipe: str
    """the base recipe of all trainings as TOML"""
    epochs: int
    """the epochs after which a training is given up"""
    evaluated_on: str | None = None
    """the data on which the target was to be reached, ``validation`` or ``test``; None in older files"""
    task_file: str | None = None
    """SHA-256 of the file that defines the task; None for a built-in one, and in older files"""
    points: tuple[BatchPoint, ...]
    fit: BatchCurve | None = None
    """fitted to the batch sizes at which every seed reached the target; None if there are fewer than three"""
    kind: str = "steps-to-target"

    @property
    def value(self) -> float:
        """The value to reach."""
        return (self.target_accuracy if self.target is None else self.target) or 0.0

    @property
    def data(self) -> str:
        """The data on which the target was to be reached; older files say it only by what their recipe holds out."""
        return self.evaluated_on or ("test" if Recipe.from_toml(self.recipe).validation is None else "validation")

    def check(self) -> None:
        """Refuse a record without a target."""
        demand(self.target_accuracy is not None or self.target is not None, "steps", "a target", None)

    def regime(self, batch: float) -> str | None:
        """Return the name of the regime of a batch size; None without a fit."""
        return None if self.fit is None else self.fit.regime(batch)

    def contents(self) -> dict[str, Any]:
        """Return the fields, and for each point its regime and whether the fit used it."""
        values = super().contents()
        for point, written in zip(self.points, values["points"], strict=True):
            written |= {"in_fit": point.complete, "regime": self.regime(point.batch)}
        return values
