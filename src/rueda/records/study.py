"""The study: a comparison of named recipes, as ``study.json``, from which the report is drawn.

::

    study.json          the table: one row per technique, with mean and spread over seeds
    runs/NAME-seedK/    the run of each row and seed
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from rueda.errors import RecipeError, RunError
from rueda.records.comparison import Comparison, Measured, are_tied, compare
from rueda.records.json_record import JsonRecord, NotNegativeInt, PositiveInt, one_of
from rueda.records.metric import ACCURACY, TOLERANCE, MetricInfo
from rueda.records.recipe.named import NAMED
from rueda.records.recipe.recipe import Recipe
from rueda.records.welch import pooled

BASELINE = "one-worker"
"""the row with which all others are compared"""
NAIVE = "naive"
"""the row of many workers with nothing else changed"""
REAL = " (real)"
"""ends the name of a row that repeats another one on real processes"""


@dataclass(frozen=True, kw_only=True)
class StudyRow:
    """A row of the table. Accuracies are fractions; a value that was not measured is None.

    Where the study's metric is the accuracy, its figures have names of their own; those of any other metric, a loss
    included, are ``test_value`` and ``train_value``.
    """

    name: str
    """the named recipe, or several joined by ``+``"""
    summary: str
    """what the recipe changes, in one line"""
    workers: PositiveInt
    global_batch: PositiveInt
    """at the end of the training"""
    epochs: NotNegativeInt
    """mean over the seeds that did not diverge, or over all if every seed did: AdaScale ends by its own clock"""
    updates: NotNegativeInt
    """likewise"""
    epochs_range: tuple[int, int] | None = None
    """the fewest and the most epochs of these seeds; None: all have the same number"""
    updates_range: tuple[int, int] | None = None
    test_accuracy: float | None = None
    """mean over the seeds that did not diverge"""
    test_accuracy_spread: float | None = None
    """sample standard deviation over them; None for one seed"""
    train_accuracy: float | None = None
    """mean over the training batches of the last epoch"""
    train_accuracy_spread: float | None = None
    test_value: float | None = None
    """the study's metric, where that is not the accuracy: mean over the seeds that did not diverge"""
    test_value_spread: float | None = None
    train_value: float | None = None
    train_value_spread: float | None = None
    validation: float | None = None
    """the metric on validation data, by which the best row is chosen; None: the task has none"""
    validation_spread: float | None = None
    others: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """further metrics by name on each set of examples, means over the seeds that did not diverge"""
    seconds: float
    """training time on this machine without evaluation, mean over the seeds"""
    images_per_second: float
    """throughput of this machine, in the study's ``unit`` per second; a rehearsal says nothing about the throughput of
    N machines"""
    rehearsed: bool
    """the workers were virtual, in one process"""
    seeds: tuple[int, ...] = ()
    diverged: NotNegativeInt = 0
    """how many seeds diverged"""
    against_one_worker: float | None = None
    """points of test accuracy above (+) or below (-) the one-worker row; of a metric that is no fraction, the change of
    its value in percent"""
    interval: tuple[float, float] | None = None
    """the 90 % interval of that difference; None: a row has one seed, and no spread could be borrowed"""
    is_pooled: bool = False
    """a row has one seed, and its spread is pooled over the study's other rows"""
    verdict: Annotated[str, one_of("kept", "lost", "undecided", "diverged")] | None = None
    """``kept`` (the whole interval is within the study's tolerance of one worker), ``lost`` (none of it is),
    ``undecided`` or ``diverged``"""
    seeds_to_decide: int | None = None
    """of an undecided row: the seeds of both rows that would most likely decide; None: more than 100, or not known"""
    runs: tuple[str, ...] = ()
    """the run folders, relative to the study's"""

    @property
    def value(self) -> float | None:
        """The study's metric on test data."""
        return self.test_accuracy if self.test_value is None else self.test_value

    @property
    def spread(self) -> float | None:
        """The standard deviation of :attr:`value` over seeds."""
        return self.test_accuracy_spread if self.test_value is None else self.test_value_spread

    @property
    def training(self) -> float | None:
        """The study's metric on the training batches of the last epoch."""
        return self.train_accuracy if self.train_value is None else self.train_value

    @property
    def training_spread(self) -> float | None:
        """The standard deviation of :attr:`training` over seeds."""
        return self.train_accuracy_spread if self.train_value is None else self.train_value_spread

    @property
    def deciding(self) -> float | None:
        """The value by which rows are chosen: on validation data, where there are some, or on test data."""
        return self.value if self.validation is None else self.validation

    @property
    def measured(self) -> Measured:
        """The metric on test data, with the number of seeds that did not diverge."""
        return Measured(value=self.value, spread=self.spread, num_seeds=len(self.seeds) - self.diverged)


@dataclass(frozen=True, kw_only=True)
class Study(JsonRecord):
    """A table that compares techniques."""

    FILE: ClassVar = "study.json"
    NOUN: ClassVar = "a study"
    COMMAND: ClassVar = "rueda study"

    task: str
    workers: PositiveInt
    epochs: int
    commands: tuple[str, ...] = ()
    """all commands that wrote the file, in order; empty in older files"""
    recipe: str = ""
    """the base recipe of all rows as TOML, without its seed; empty in older files"""
    task_file: str | None = None
    """SHA-256 of the file that defines the task; None for a built-in one, and in older files"""
    metric: MetricInfo = ACCURACY
    """what the rows are compared by; the accuracy in older files"""
    tolerance: float = TOLERANCE
    """how much worse a row may be than one worker and still be ``kept``: 0.01 is a point of a fraction, or 1 percent"""
    unit: str = "images"
    """what the throughput counts: images, examples or tokens"""
    rows: tuple[StudyRow, ...] = ()
    kind: str = "techniques"

    @property
    def settings(self) -> str:
        """What all rows share, for messages."""
        return f"task {self.task}, {self.workers} workers, {self.epochs} epochs"

    def base_recipe(self, source: Path, advice: str) -> Recipe:
        """Return the base recipe; a damaged one raises a RunError that names the file and ends with the advice."""
        try:
            return Recipe.from_toml(self.recipe)
        except RecipeError as error:
            raise RunError(f"{source}: expected a base recipe, got: {error}; {advice}") from None

    def row(self, name: str) -> StudyRow | None:
        """Return the row of a name, or None."""
        return next((row for row in self.rows if row.name == name), None)

    @classmethod
    def from_json(cls, text: str, *, source: str | None = None, again: str | None = None) -> Study:
        """Read a study and judge it anew: the verdicts of older files are differences without an interval."""
        return super().from_json(text, source=source, again=again).judged()

    def candidates(self) -> list[StudyRow]:
        """List the rehearsed rows with remedies, in which no seed diverged; the naive row if there are no others.

        Rows that train for as many epochs as one worker are preferred, if there are any.
        """
        base = self.row(BASELINE)
        many = [row for row in self.rows if row.rehearsed and row.workers > 1]
        many = [row for row in many if row.diverged == 0 and row.deciding is not None]
        many = [row for row in many if row.name != NAIVE] or many
        return [row for row in many if base is not None and row.epochs == base.epochs] or many

    def best(self) -> StudyRow | None:
        """Return the best of the :meth:`candidates`: on validation data, where there are some, else on test data."""
        return max(self.candidates(), key=lambda row: self.metric.score(row.deciding or 0.0), default=None)

    def confirmed(self, row: StudyRow) -> StudyRow | None:
        """Return the row that repeats another one with seeds by which it was not chosen, if there is one."""
        found = self.row(f"{row.name}{REAL}")
        return found if found is not None and not set(found.seeds) & set(row.seeds) else None

    def strongest(self) -> StudyRow | None:
        """Return the best row of one worker: a gain of many workers is what they have beyond it.

        It is chosen as the best row is, by :attr:`StudyRow.deciding`.
        """
        alone = [row for row in self.rows if row.workers == 1 and row.diverged == 0 and row.deciding is not None]
        return max(alone, key=lambda row: self.metric.score(row.deciding or 0.0), default=None)

    def ordered(self) -> list[StudyRow]:
        """Return the rows as tables show them: one worker, the controls, then the others."""
        return sorted(self.rows, key=lambda row: (row.name != BASELINE, BASELINE not in row.name.split("+")))

    def judged(self) -> Study:
        """Return the study with every row compared with the one-worker row.

        >>> row = StudyRow(name="one-worker", summary="", workers=1, global_batch=64, epochs=3, updates=561,
        ...     test_accuracy=0.913, test_accuracy_spread=0.01, seeds=(0, 1, 2), seconds=4.0,
        ...     images_per_second=9000.0, rehearsed=False)
        >>> naive = replace(row, name="naive", workers=8, test_accuracy=0.726, rehearsed=True)
        >>> study = Study(task="glyphs-cnn", workers=8, epochs=3, rows=(row, naive)).judged()
        >>> [(row.against_one_worker, row.interval, row.verdict) for row in study.rows]
        [(None, None, None), (-18.7, (-20.44..., -16.95...), 'lost')]
        """
        base = self.row(BASELINE)
        return replace(self, rows=tuple(self._judge(row, base) for row in self.rows))

    def compare(self, row: StudyRow, base: StudyRow) -> Comparison:
        """Compare a row with another; a row of one seed borrows the spread of the study's rows with several."""
        borrows = any(not one.measured.has_spread for one in (row, base)) or are_tied(row.measured, base.measured)
        several = [one.measured for one in self.rows if one.measured.has_spread and not one.diverged]
        shared = pooled([(one.spread or 0.0, one.num_seeds) for one in several]) if borrows else None
        return compare(row.measured, base.measured, self.metric, self.tolerance, shared)

    def _judge(self, row: StudyRow, base: StudyRow | None) -> StudyRow:
        found = Comparison() if base is None or row is base else self.compare(row, base)
        if row.diverged > 0:  # even if the other seeds keep the accuracy
            found = Comparison(change=found.change, verdict="diverged")
        return replace(
            row, against_one_worker=found.change, interval=found.interval, is_pooled=found.is_pooled,
            verdict=found.verdict, seeds_to_decide=found.seeds_to_decide,
        )  # fmt: skip


def remedies(name: str) -> list[str]:
    """List the named recipes that a row combines, without ``one-worker``.

    >>> remedies("one-worker+batch-norm"), remedies("batch-norm+lamb (real)")
    (['batch-norm'], ['batch-norm', 'lamb'])
    """
    return [part for part in name.removesuffix(REAL).split("+") if part != BASELINE]


def control_of(name: str) -> str | None:
    """Return the row that trains one worker with the remedies of a row; None if that would repeat one worker's row.

    A batch that grows anneals the noise as a decaying rate does, so its control is one worker whose rate decays.

    >>> control_of("batch-norm+batch-growth"), control_of("linear-warmup")
    ('one-worker+batch-norm+decay', None)
    """
    parts = [NAMED[part].control for part in remedies(name) if part in NAMED and NAMED[part].control]
    return "+".join([BASELINE, *parts]) if parts else None


def missing_control(name: str) -> str:
    """Say that a study lacks the control of a row, and how to add it; empty if the row needs none.

    >>> missing_control("lamb")
    'The control is missing: no row trains one worker with lamb. Add it with --rows one-worker+lamb.'
    """
    control = control_of(name)
    if control is None:
        return ""
    what = "+".join(remedies(control))
    return f"The control is missing: no row trains one worker with {what}. Add it with --rows {control}."


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the sample standard deviation, which needs two values; NaN if a value is not finite.

    >>> mean_and_spread([0.5, 1.0]), mean_and_spread([0.8]), mean_and_spread([]), mean_and_spread([1.0, math.inf])
    ((0.75, 0.3535...), (0.8, None), (None, None), (nan, nan))
    """
    if not values:
        return None, None
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
