"""The forecast: how the test error falls with the data, and what a target error needs, as ``forecast.json``.

::

    forecast.json       points (measured), law (fitted), band (to draw), need (the answer), refusals (why there is none)
    runs/m1000-seed0/   the training of each size and seed

Errors are fractions of the test set that the model gets wrong after the last epoch; sizes are examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rueda.records.json_record import FORMAT, JsonRecord, demand, demand_numbers
from rueda.records.study import mean_and_spread


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One size of the training set, over some seeds."""

    examples: int
    """m, different ones"""
    passes: float
    """how often each was seen"""
    updates: int
    errors: tuple[float, ...]
    """test error after the last epoch, a seed each; diverged ones are not among them"""
    seeds: tuple[int, ...] = ()
    diverged: int = 0
    images_per_second: float = 0.0
    """mean over the seeds, on the machine that trained"""

    @property
    def error(self) -> float | None:
        """Mean over the seeds.

        >>> CurvePoint(examples=100, passes=4.0, updates=50, errors=(0.25, 0.75)).error
        0.5
        """
        return mean_and_spread(self.errors)[0]

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds; None for one."""
        return mean_and_spread(self.errors)[1]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its interval; ``high`` None has no upper end."""

    value: float
    low: float
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Law:
    """error(m) = alpha m^beta + gamma (Hestness et al. 2017, 1712.00409)."""

    alpha: Estimate
    beta: Estimate
    gamma: Estimate
    """the error that no amount of data removes"""
    confidence: float
    """of all intervals"""
    fitted: tuple[int, ...]
    """the sizes that the fit used"""
    misfit: float
    """p-value of the test for lack of fit: small says that the points do not lie on such a curve"""
    reach: float
    """examples up to which the interval of the error is narrow enough to be told"""
    irreducible_from: float | None
    """examples from which gamma is surely more than half of the error (upper end of its interval); None: never"""

    def error(self, examples: float) -> float:
        """Give the error at a size."""
        return float(self.alpha.value * examples**self.beta.value + self.gamma.value)


@dataclass(frozen=True, kw_only=True)
class BandPoint:
    """The curve and its interval at one size."""

    examples: float
    error: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Check:
    """A size beyond the fit that was trained, too, and the error that had been predicted for it."""

    point: CurvePoint
    predicted: Estimate
    inside: bool
    """the mean error lies in the interval"""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What the target error needs."""

    examples: Estimate
    """in the training set"""
    passes: float
    """how often each is seen"""
    updates: float
    processed: float
    """examples x passes"""
    seconds: float | None
    """on the machine that trained the subsets, one worker; None: not known"""


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """How long the need takes on a cluster."""

    cluster: str
    workers: int
    local_batch: int
    images_per_second: float
    hours: Estimate
    """at one worker's number of examples; a global batch beyond the critical one needs more"""
    cost: float | None = None
    """None: the cluster states no price"""
    currency: str = "USD"


@dataclass(frozen=True, kw_only=True)
class Forecast(JsonRecord):
    """A learning curve, the law fitted to it, and the answer."""

    FILE: ClassVar = "forecast.json"
    NOUN: ClassVar = "a forecast"
    COMMAND: ClassVar = "rueda forecast"

    task: str
    examples: int
    """in the whole training set"""
    test_examples: int
    chance: float
    """error of always naming the most frequent class of the test set"""
    batch: int
    epochs: int
    growth: float
    """an epoch of m examples has examples^(1 - growth) m^growth of them, so that small subsets are seen more often"""
    recipe: str
    """with which every size was trained, as TOML"""
    points: tuple[CurvePoint, ...] = ()
    whole: CurvePoint | None = None
    """the whole training set, trained as a check and never fitted"""
    target_error: float | None = None
    law: Law | None = None
    band: tuple[BandPoint, ...] = ()
    need: Need | None = None
    cluster: OnCluster | None = None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    """points that were left out, and why"""
    refusals: tuple[str, ...] = ()
    """why something is not answered, a line each"""
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    kind: str = "forecast"
    format: int = FORMAT

    def epoch_examples(self, examples: float) -> float:
        """Give how many examples an epoch of a training set of this size has, repeated ones included.

        >>> about = {"task": "", "test_examples": 1, "chance": 0.9, "batch": 64, "epochs": 4, "recipe": ""}
        >>> Forecast(examples=10_000, growth=0.5, **about).epoch_examples(2_500)
        5000.0
        """
        return epoch_length(examples, self.examples, self.growth)

    def check(self) -> None:
        """Refuse what would fail later, far from the file."""
        for name in ("examples", "test_examples", "batch", "epochs"):
            demand(getattr(self, name) >= 1, f"forecast.{name}", "at least 1", getattr(self, name))
        whole = () if self.whole is None else (self.whole,)
        for point in (*self.points, *whole, *(check.point for check in self.checks)):
            if point.examples < 1 or not all(0 <= error <= 1 for error in point.errors):
                raise ValueError(f"forecast.points: expected sizes from 1 and errors from 0 to 1, got {point}")
            demand_numbers(point, "forecast.points", from_zero=("passes", "updates"))
        target = self.target_error
        demand(target is None or 0 < target < 1, "forecast.target_error", "more than 0 and less than 1", target)
        self._check_law()
        self._check_need()

    def _check_law(self) -> None:
        law = self.law
        if law is not None:
            demand(bool(law.fitted) and min(law.fitted) >= 1, "forecast.law.fitted", "sizes from 1", law.fitted)
            demand(0 < law.confidence < 1, "forecast.law.confidence", "more than 0 and less than 1", law.confidence)
            for name, estimate in (("alpha", law.alpha), ("beta", law.beta), ("gamma", law.gamma)):
                _check_estimate(estimate, f"forecast.law.{name}")
            # A steeper one overflows within the sizes that there are.
            demand(abs(law.beta.value) <= 10, "forecast.law.beta", "an exponent from -10 to 10", law.beta.value)
        for point in self.band:
            demand_numbers(point, "forecast.band", above=("examples",), from_zero=("error", "high"))
            demand(math.isfinite(point.low), "forecast.band.low", "a number", point.low)
        for check in self.checks:
            _check_estimate(check.predicted, "forecast.checks.predicted")

    def _check_need(self) -> None:
        if self.need is not None:
            demand_numbers(self.need, "forecast.need", above=("passes", "updates", "processed"), from_zero=("seconds",))
            _check_estimate(self.need.examples, "forecast.need.examples", above_zero=True)
        if self.cluster is not None:
            above = ("workers", "local_batch", "images_per_second")
            demand_numbers(self.cluster, "forecast.cluster", above=above, from_zero=("cost",))
            _check_estimate(self.cluster.hours, "forecast.cluster.hours", above_zero=True)


def epoch_length(examples: float, whole: int, growth: float) -> float:
    """Give how many examples an epoch of a subset has, repeated ones included: whole^(1 - growth) examples^growth."""
    return float(whole ** (1 - growth) * examples**growth)


def _check_estimate(estimate: Estimate, where: str, *, above_zero: bool = False) -> None:
    """Refuse a value or an end that is no number; a high end of None is open."""
    for name in ("value", "low", "high"):
        value = getattr(estimate, name)
        holds = value is None or (math.isfinite(value) and (value > 0 or not above_zero))
        demand(holds, f"{where}.{name}", "a number, more than 0" if above_zero else "a number", value)
