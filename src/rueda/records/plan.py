"""The plan: the predicted training of a task on a cluster, as ``plan.json``. ``rueda plan`` writes it for the report.

::

    plan.json       rows (workers x local batch), the recommended one, advice, warnings, what is not known
    planned.toml    the recipe, for `rueda train --recipe`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rueda.errors import ProfileError
from rueda.records.json_record import JsonRecord, NotNegative, Positive, PositiveInt, demand
from rueda.records.task_file import TaskFile


@dataclass(frozen=True, kw_only=True)
class PlanNoise:
    """The gradient noise scale that a plan uses, and when in the training it was measured."""

    value: Positive
    """the mean over the measurements, in examples: roughly the critical batch size"""
    first: float
    """the earliest measurement"""
    low: float | None
    high: float | None
    step: int
    """the update of the last measurement"""
    epochs: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted step of a number of workers at a local batch."""

    workers: PositiveInt
    nodes: PositiveInt
    local_batch: PositiveInt
    """examples in one forward pass of one worker"""
    global_batch: PositiveInt
    """workers x local_batch x gradient accumulation"""
    compute_seconds: NotNegative
    """a worker's step without communication, while the other workers of its node compute as well"""
    sync_seconds: NotNegative
    """all all-reduces of a step, whether the backward pass hides them or not"""
    exposed_seconds: NotNegative
    """by how much they lengthen the step"""
    straggler_seconds: NotNegative
    """waiting for the slowest worker"""
    step_seconds: Positive
    """compute + exposed + straggler"""
    images_per_second: Positive
    """global_batch / step_seconds"""
    efficiency: Positive
    """throughput per worker, divided by that of one worker alone at this local batch"""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanRow(Prediction):
    """The prediction for a number of workers and a local batch, and what the training takes there."""

    scaling: str
    """``weak``: the local batch of one worker; ``strong``: the global batch of one worker; ``other``: neither"""
    speedup: Positive
    """throughput, divided by that of one worker at the base batch"""
    statistical_efficiency: Positive | None
    """progress per example, relative to the base batch; None: the noise scale is not known"""
    goodput: Positive | None
    """throughput x statistical efficiency"""
    updates: Positive
    """updates that the recipe makes, to come as far as one worker"""
    epochs: Positive
    """the same in epochs"""
    growth_factor: PositiveInt | None = None
    """what the global batch is multiplied by at ``growth_epochs``; None: it stays"""
    growth_epochs: tuple[int, ...] = ()
    hours: Positive
    """the predicted time to one worker's result"""
    money: NotNegative | None
    """hours x nodes x price"""
    best: bool = False
    """the best local batch for this number of workers"""
    recommended: bool = False

    @property
    def final_batch(self) -> int:
        """The global batch of the last epoch."""
        return int(self.global_batch * (self.growth_factor or 1) ** len(self.growth_epochs))

    @property
    def progress(self) -> float:
        """Goodput, or throughput where the noise scale is not known."""
        return self.images_per_second if self.goodput is None else self.goodput


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The least predicted time to one worker's result with a number of workers."""

    workers: PositiveInt
    hours: Positive


@dataclass(frozen=True, kw_only=True)
class Plan(JsonRecord):
    """The result of ``rueda plan``."""

    FILE: ClassVar = "plan.json"
    NOUN: ClassVar = "a plan"
    COMMAND: ClassVar = "rueda plan"
    ERROR: ClassVar = ProfileError

    task: str
    task_file: TaskFile | None = None
    """the file that defines the task, as the profile has it"""
    unit: str = "images"
    """what is counted per second, as the profile has it"""
    device: str
    cluster: str
    cluster_title: str
    examples: PositiveInt
    base_batch: PositiveInt
    """the batch of one worker, whose result the plan is to match"""
    base_rate: float
    base_epochs: PositiveInt
    noise: PlanNoise | None
    rows: tuple[PlanRow, ...]
    curve: tuple[CurvePoint, ...] = ()
    """time to one worker's result for 1, 2, 4 ... workers, also beyond those asked for"""
    currency: str | None = None
    """currency of ``money``, if the cluster has a price"""
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """what the plan could not take into account, one line each"""
    sources: tuple[str, ...] = ()
    recipe: str = ""
    """the planned recipe, as TOML"""
    kind: str = "plan"

    @property
    def chosen(self) -> PlanRow:
        """The recommended row."""
        return next(row for row in self.rows if row.recommended)

    @property
    def useful_workers(self) -> int | None:
        """The number of workers beyond which another is wasted: the time falls by less than 5 %; None: not known."""
        if not self.curve:
            return None
        least = min(point.hours for point in self.curve)
        return next(point.workers for point in self.curve if point.hours <= 1.05 * least)

    def best(self) -> list[PlanRow]:
        """Return the best row of each number of workers, in ascending order."""
        return sorted((row for row in self.rows if row.best), key=lambda row: row.workers)

    def check(self) -> None:
        """Raise ValueError unless there are best rows and exactly one recommended row."""
        demand(any(row.best for row in self.rows), "plan.rows", "a best row for each number of workers", "none")
        recommended = sum(row.recommended for row in self.rows)
        demand(recommended == 1, "plan.rows", "one recommended row", recommended)
