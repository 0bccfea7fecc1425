"""The plan: what a cluster would do with a task, as ``plan.json``. The report reads it; ``rueda plan`` writes it.

::

    plan.json       rows (workers x local batch), the recommended one, advice, warnings, what is not known
    planned.toml    the recipe, for `rueda train --recipe`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from rueda.errors import ProfileError
from rueda.records.json_record import FORMAT, JsonRecord, demand, demand_numbers


@dataclass(frozen=True, kw_only=True)
class PlanNoise:
    """The gradient noise scale that a plan uses, and where in the training it was measured."""

    value: float
    """in examples: the critical batch size, about; the latest measured"""
    first: float
    """the earliest measured"""
    low: float | None
    high: float | None
    step: int
    epochs: float
    source: str


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One number of workers at one local batch."""

    workers: int
    nodes: int
    scaling: str
    """weak: one worker's local batch; strong: one worker's global batch; other: neither"""
    local_batch: int
    global_batch: int
    step_seconds: float
    compute_seconds: float
    sync_seconds: float
    exposed_seconds: float
    straggler_seconds: float
    images_per_second: float
    efficiency: float
    """images/s a worker, against one worker alone at this local batch"""
    speedup: float
    """images/s against one worker at the base batch"""
    statistical_efficiency: float | None
    """what an example is worth, against the base batch; None: no noise scale"""
    goodput: float | None
    """images/s x statistical efficiency"""
    updates: float
    """to where one worker comes"""
    epochs: float
    """the same, in passes over the data"""
    hours: float
    money: float | None
    """hours x nodes x price"""
    best: bool = False
    """the best local batch for this number of workers"""
    recommended: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def progress(self) -> float:
        """Images a second that count."""
        return self.images_per_second if self.goodput is None else self.goodput


_ABOVE_ZERO = (
    "workers", "nodes", "local_batch", "global_batch", "step_seconds", "images_per_second", "efficiency", "speedup",
    "statistical_efficiency", "goodput", "updates", "epochs", "hours",
)  # fmt: skip
_FROM_ZERO = ("compute_seconds", "sync_seconds", "exposed_seconds", "straggler_seconds", "money")


@dataclass(frozen=True, kw_only=True)
class Plan(JsonRecord):
    """What ``rueda plan`` found."""

    FILE: ClassVar = "plan.json"
    NOUN: ClassVar = "a plan"
    COMMAND: ClassVar = "rueda plan"
    ERROR: ClassVar = ProfileError

    task: str
    device: str
    cluster: str
    cluster_title: str
    examples: int
    base_batch: int
    """of one worker's training, which the plan shall equal"""
    base_rate: float
    base_epochs: int
    noise: PlanNoise | None
    rows: tuple[PlanRow, ...]
    currency: str | None = None
    """of the money, where there is a price"""
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """what the plan does not know"""
    sources: tuple[str, ...] = ()
    recipe: str = ""
    """the planned recipe, as TOML"""
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    kind: str = "plan"
    format: int = FORMAT

    @property
    def chosen(self) -> PlanRow:
        """The recommended row."""
        return next(row for row in self.rows if row.recommended)

    def best(self) -> list[PlanRow]:
        """Give the best row of each number of workers, fewest first."""
        return sorted((row for row in self.rows if row.best), key=lambda row: row.workers)

    def check(self) -> None:
        """Refuse a plan without its one recommendation, and rows with numbers that no plan gives."""
        demand_numbers(self, "plan", above=("examples", "base_batch", "base_epochs"))
        if self.noise is not None:
            demand_numbers(self.noise, "plan.noise", above=("value",))
        for index, row in enumerate(self.rows):
            demand_numbers(row, f"plan.rows[{index}]", above=_ABOVE_ZERO, from_zero=_FROM_ZERO)
        demand(any(row.best for row in self.rows), "plan.rows", "a best row for each number of workers", "none")
        if sum(row.recommended for row in self.rows) != 1:
            raise ValueError("plan.rows: expected one recommended row")
