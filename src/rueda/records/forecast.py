"""The forecast: how the test error falls with more data, and what a target error needs, as ``forecast.json``.

::

    forecast.json       points (measured), law (fitted), band (for the figure), need (the answer), refusals (or why not)
    runs/m1000-seed0/   the training of each size and seed

An error is the fraction of the test set that is misclassified after the last epoch; sizes are numbers of examples. A
task whose metric is no such fraction is forecast by its loss, or by any metric of which lower is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rueda.records.json_record import (
    Finite,
    JsonRecord,
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    Rule,
    demand,
)
from rueda.records.metric import ACCURACY, MetricInfo
from rueda.records.study import mean_and_spread

BelowOne = Annotated[float, Rule("more than 0 and less than 1", lambda value: 0 < value < 1)]


FEWEST_SIZES = 4
"""number of sizes that the fit of a power law with three constants needs"""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The trainings with one size of the training set."""

    examples: PositiveInt
    """m, the number of distinct examples"""
    passes: NotNegative
    """how often each example was seen"""
    updates: NotNegativeInt
    errors: tuple[NotNegative, ...]
    """test error, or the value of a metric of which lower is better, after the last epoch, for each seed that did not
    diverge"""
    seeds: tuple[int, ...] = ()
    diverged: int = 0
    images_per_second: float = 0.0
    """mean over the seeds, on the machine that trained; of text, examples per second, since sizes count examples"""

    @property
    def error(self) -> float | None:
        """The mean test error over the seeds.

        >>> CurvePoint(examples=100, passes=4.0, updates=50, errors=(0.25, 0.75)).error
        0.5
        """
        return mean_and_spread(self.errors)[0]

    @property
    def spread(self) -> float | None:
        """The sample standard deviation of the test error over the seeds; None for one seed."""
        return mean_and_spread(self.errors)[1]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its confidence interval; ``high`` is None if there is no upper end."""

    value: Finite
    low: Finite
    high: Finite | None


Exponent = Annotated[Estimate, Rule("an exponent from -10 to 10", lambda found: abs(found.value) <= 10)]
"""a steeper power law would overflow at usual sizes"""
PositiveEstimate = Annotated[
    Estimate, Rule("numbers, more than 0", lambda found: min(found.value, found.low, found.high or 1) > 0)
]


@dataclass(frozen=True, kw_only=True)
class Law:
    """error(m) = alpha m^beta + gamma (Hestness et al. 2017, 1712.00409)."""

    alpha: Estimate
    beta: Exponent
    gamma: Estimate
    """the error that no amount of data removes"""
    confidence: BelowOne
    """confidence level of all intervals"""
    fitted: Annotated[tuple[PositiveInt, ...], Rule("sizes from 1", bool)]
    """the sizes that the fit used"""
    misfit: float
    """p-value of a lack-of-fit test: a small value says that the points do not lie on such a curve"""
    reach: float
    """largest size at which the interval of the error is narrow enough for a forecast"""
    irreducible_from: float | None
    """size from which gamma is more than half of the error (upper end of its interval); None: never"""

    def error(self, examples: float) -> float:
        """Return the predicted error at a size."""
        return float(self.alpha.value * examples**self.beta.value + self.gamma.value)


@dataclass(frozen=True, kw_only=True)
class BandPoint:
    """The fitted curve and its interval at one size."""

    examples: Positive
    error: NotNegative
    low: Finite
    high: NotNegative


@dataclass(frozen=True, kw_only=True)
class Check:
    """A size that was trained but not fitted, and the error that the fit predicts for it."""

    point: CurvePoint
    predicted: Estimate
    inside: bool
    """the mean error lies in the interval"""


@dataclass(frozen=True, kw_only=True)
class Need:
    """The data and compute that the target error needs."""

    examples: PositiveEstimate
    """size of the training set"""
    passes: Positive
    """how often each example is seen"""
    updates: Positive
    processed: Positive
    """examples x passes"""
    seconds: NotNegative | None
    """training time of one worker on the machine that trained the subsets; None: not known"""


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """The time and cost, on a cluster, of the training that the target error needs."""

    cluster: str
    workers: PositiveInt
    local_batch: PositiveInt
    images_per_second: Positive
    hours: PositiveEstimate
    """for as many examples as one worker needs; a global batch above the critical one needs more"""
    cost: NotNegative | None = None
    """None: the cluster has no price"""
    currency: str = "USD"


@dataclass(frozen=True, kw_only=True)
class Forecast(JsonRecord):
    """A learning curve, the law that was fitted to it, and what a target error needs."""

    FILE: ClassVar = "forecast.json"
    NOUN: ClassVar = "a forecast"
    COMMAND: ClassVar = "rueda forecast"

    task: str
    examples: PositiveInt
    """size of the whole training set"""
    test_examples: PositiveInt
    chance: float | None
    """error of always predicting the most frequent class of the test set; None: not known"""
    metric: MetricInfo = ACCURACY
    """what the error is computed from: 1 - a fraction of which higher is better, or a value of which lower is better"""
    unit: str = "images"
    """what is counted per second"""
    batch: PositiveInt
    epochs: PositiveInt
    growth: float
    """exponent g: an epoch of a subset of m examples has examples^(1 - g) m^g, so that small ones repeat more often"""
    recipe: str
    """the recipe of all trainings, as TOML"""
    points: tuple[CurvePoint, ...] = ()
    whole: CurvePoint | None = None
    """the training with the whole training set, a check that is never fitted"""
    target_error: Positive | None = None
    law: Law | None = None
    band: tuple[BandPoint, ...] = ()
    need: Need | None = None
    cluster: OnCluster | None = None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    """points that were left out, and why"""
    refusals: tuple[str, ...] = ()
    """why a question is not answered, one line each"""
    kind: str = "forecast"

    @property
    def is_fraction(self) -> bool:
        """Whether errors are fractions of the test set, from 0 to 1."""
        return self.metric.percent

    def check(self) -> None:
        """Refuse fractions above 1."""
        if self.is_fraction:
            for index, point in enumerate(self.points):
                demand(
                    max(point.errors, default=0.0) <= 1,
                    f"forecast.points[{index}].errors",
                    "a fraction, from 0 to 1",
                    point.errors,
                )
            demand((self.target_error or 0.5) < 1, "forecast.target_error", "less than 1", self.target_error)

    @property
    def error_name(self) -> str:
        """What an error is called: ``test error``, or the name of the metric.

        >>> about = {"task": "", "examples": 9, "test_examples": 1, "chance": None, "batch": 64, "epochs": 4,
        ...     "growth": 0.5, "recipe": ""}
        >>> from rueda.records.metric import LOSS
        >>> Forecast(**about).error_name, Forecast(metric=LOSS, **about).error_name
        ('test error', 'test loss')
        """
        return "test error" if self.is_fraction and self.metric.name == "accuracy" else (
            f"1 - test {self.metric.name}" if self.metric.higher_is_better else f"test {self.metric.name}"
        )  # fmt: skip

    def epoch_examples(self, examples: float) -> float:
        """Return how many examples an epoch of a training set of this size has, counting repetitions.

        >>> about = {"task": "", "test_examples": 1, "chance": 0.9, "batch": 64, "epochs": 4, "recipe": ""}
        >>> Forecast(examples=10_000, growth=0.5, **about).epoch_examples(2_500)
        5000.0
        """
        return epoch_length(examples, self.examples, self.growth)


def epoch_length(examples: float, whole: int, growth: float) -> float:
    """Return how many examples an epoch of a subset has, counting repetitions: whole^(1 - growth) examples^growth."""
    return float(whole ** (1 - growth) * examples**growth)
