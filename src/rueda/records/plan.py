"""The plan: the predicted training of a task on a cluster, as ``plan.json``. ``rueda plan`` writes it for the report.

::

    plan.json       rows (workers x local batch), the recommended one, advice, warnings, what is not known
    planned.toml    the recipe, for `rueda train --recipe`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rueda.errors import ProfileError
from rueda.records.failure_plan import FailurePlan
from rueda.records.json_record import JsonRecord, NotNegative, NotNegativeInt, Positive, PositiveInt, demand
from rueda.records.parallelism import FormPrediction
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
    last_low: float | None = None
    """the lower end of the last measurement: the noise scale grows, so later parts of the training bear as much"""


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
    """progress per example, relative to the base batch, where the batch grows the mean over all epochs; None: the noise
    scale is not known"""
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
class ExchangePrediction:
    """The predicted update of workers that exchange parameters every ``sync_every`` updates."""

    workers: PositiveInt
    local_batch: PositiveInt
    sync_every: PositiveInt
    fragments: PositiveInt = 1
    delay: NotNegativeInt = 0
    """``sync_delay``: updates that are computed while an exchange is under way"""
    exchange_seconds: NotNegative
    """all fragments, one after the other"""
    exposed_seconds: NotNegative
    """by how much the exchanges lengthen an update, on average"""
    step_seconds: Positive
    share: Positive
    """``step_seconds``, divided by the update with gradients averaged each time"""
    bytes_per_update: NotNegative
    """what a worker sends, on average"""
    worth_below: Positive | None = None
    """bytes per second of the slowest link below which at least 5 % of the time is saved; None: at any bandwidth, at
    none, or not known, as on the profiled machine"""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The least predicted time to one worker's result with a number of workers."""

    workers: PositiveInt
    hours: Positive


@dataclass(frozen=True, kw_only=True)
class JoiningPhase:
    """The epochs between two milestones of a growing batch, and the number of workers that pays there."""

    first_epoch: NotNegativeInt
    """epochs made before this phase"""
    end_epoch: PositiveInt
    """epochs made after it"""
    global_batch: PositiveInt
    workers: PositiveInt
    nodes: PositiveInt
    batch: PositiveInt
    """``batch`` of the recipe with this number of workers: with ``accumulate`` it makes the *first* global batch, from
    which the batch grows"""
    accumulate: PositiveInt
    updates: PositiveInt
    hours: Positive
    money: NotNegative | None
    """hours x nodes x price"""


@dataclass(frozen=True, kw_only=True)
class Joining:
    """Workers that join as the batch grows: the recommended training, with only as many workers as pay in each phase.

    The batches, the rate and the updates are those of the recommended row, so only time and cost differ. Stopping and
    resuming at the milestones is not part of the hours.
    """

    phases: tuple[JoiningPhase, ...]
    hours: Positive
    node_hours: Positive
    worker_hours: Positive
    money: NotNegative | None

    @property
    def grows(self) -> bool:
        """Whether workers join."""
        return self.phases[0].workers < self.phases[-1].workers

    def words(self) -> str:
        """Return the schedule in words: ``epochs 0-5: 8 workers, 5-10: 16, 10-20: 64``.

        Successive phases with equally many workers are one.
        """
        merged: list[list[int]] = []
        for phase in self.phases:
            if merged and merged[-1][2] == phase.workers:
                merged[-1][1] = phase.end_epoch
            else:
                merged.append([phase.first_epoch, phase.end_epoch, phase.workers])
        parts = [f"{first}-{end}: {workers:,}" for first, end, workers in merged]
        return f"epochs {parts[0]} worker{'s' * (merged[0][2] != 1)}" + "".join(f", {part}" for part in parts[1:])

    def commands(self, task: str, recipe: str) -> list[str]:
        """Return the commands that run it, each one to the milestone at which workers join, then resumed with more.

        The batch from which the growth starts is the same in all of them, so the local batch changes with the workers.

        Args:
            task: the task as `rueda train` takes it.
            recipe: the path of the planned recipe.
        """
        found: list[str] = []
        for number, phase in enumerate(self.phases):
            later = self.phases[number + 1 :]
            if later and later[0].workers == phase.workers:
                continue  # nobody joins at the end of this phase
            parts = [f"rueda train {task} --recipe {recipe} --workers {phase.workers} --set batch={phase.batch}"]
            parts += [f"--set accumulate={phase.accumulate}"] * (phase.accumulate > 1)
            parts += [f"--epochs {phase.end_epoch}"] * bool(later)
            found.append(" ".join([*parts, "--run runs/joining", *["--resume"] * bool(found)]))
        return found


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
    joining: Joining | None = None
    """the recommended row with workers that join as its batch grows; None: its batch does not grow"""
    failures: FailurePlan | None = None
    """checkpoint interval and spare nodes; None: failures are negligible, or not known on this machine"""
    forms: tuple[FormPrediction, ...] = ()
    """the parallel forms of the recommended number of workers; empty: not asked for, and data parallelism fits"""
    forms_batch: PositiveInt | None = None
    """the global batch of ``forms``"""
    form_reason: str = ""
    """which of ``forms``, and why"""
    refused_forms: tuple[tuple[str, str], ...] = ()
    """forms that cannot be, and why"""
    exchanges: tuple[ExchangePrediction, ...] = ()
    """updates of the recommended workers with other ``sync_every``; empty: not asked for, and little would be saved"""
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
        """Raise ValueError unless there are best rows, one recommended row, and the simulations of what was chosen."""
        demand(any(row.best for row in self.rows), "plan.rows", "a best row for each number of workers", "none")
        recommended = sum(row.recommended for row in self.rows)
        demand(recommended == 1, "plan.rows", "one recommended row", recommended)
        if self.failures is not None:
            self.failures.check()
