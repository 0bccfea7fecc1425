"""The result of ``rueda assess``: criteria, points and reasons of a submission (``assessment.json``), or of a class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from rueda.records.json_record import Fraction, JsonRecord, NotNegative, NotNegativeInt, PositiveInt, one_of
from rueda.records.script_check import Verdict

PASSED, FAILED, NOT_REACHED = "passed", "failed", "not reached"


@dataclass(frozen=True)
class Criterion:
    """One criterion of an assessment.

    Args:
        name: its name, such as ``distributed``.
        question: what holds if it is met.
        status: ``passed``, ``failed``, or ``not reached`` if an earlier one left nothing to judge.
        points: what the submission gets for it.
        most: what it is worth; 0: a condition, without which the whole submission gets no points.
        reason: what was found, in a sentence.
    """

    name: str
    question: str
    status: Annotated[str, one_of(PASSED, FAILED, NOT_REACHED)]
    points: NotNegative
    most: NotNegative
    reason: str = ""


@dataclass(frozen=True)
class SavedEpoch:
    """A model that the script has saved, as the grader evaluated it.

    Args:
        epoch: the number in its name.
        accuracy: the fraction of the grader's own examples that it classifies rightly.
        public: the same on the validation examples that the script was given.
        seconds: from the first training step until the file was complete.
        examples: training examples that all workers together had read since the epoch before.
        note: why it does not count, if so.
    """

    epoch: PositiveInt
    accuracy: Fraction
    public: Fraction
    seconds: float
    examples: NotNegativeInt
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Assessment(JsonRecord):
    """The result of one submission."""

    FILE: ClassVar = "assessment.json"
    NOUN: ClassVar = "an assessment"
    COMMAND: ClassVar = "rueda assess train.py -np 4 --output assessment.json"

    learner: str
    """who handed it in: --name, or the name of the file or folder"""
    script: str
    """the name of the script"""
    digest: str
    """SHA-256 of the script"""
    task: str
    """the data set of the task"""
    workers: PositiveInt
    target_accuracy: Fraction
    patience: PositiveInt
    """consecutive epochs that must reach the target"""
    within: NotNegative
    """the seconds that training may take"""
    criteria: tuple[Criterion, ...] = ()
    epochs: tuple[SavedEpoch, ...] = ()
    checks: tuple[Verdict, ...] = ()
    """what `rueda check` found"""
    isolation: tuple[str, ...] = ()
    """what kept the script apart from the grader"""
    notes: tuple[str, ...] = ()
    passed: bool = False
    points: NotNegative = 0.0
    kind: str = "assessment"

    @property
    def reasons(self) -> list[str]:
        """The criteria that were not met, each with its reason."""
        return [f"{one.name}: {one.reason}" for one in self.criteria if one.status == FAILED]

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{'passed' if self.passed else 'failed'}, {self.points:g} of 100 points"


@dataclass(frozen=True)
class GradebookRow:
    """The result of one submission of a class."""

    learner: str
    passed: bool
    points: NotNegative
    accuracy: float
    seconds: float
    reason: str
    file: str
    """the assessment, relative to the gradebook"""


@dataclass(frozen=True, kw_only=True)
class Gradebook(JsonRecord):
    """The results of a class."""

    FILE: ClassVar = "gradebook.json"
    NOUN: ClassVar = "a gradebook"
    COMMAND: ClassVar = "rueda assess --folder submissions/ -np 4"

    task: str
    workers: PositiveInt
    target_accuracy: Fraction
    within: NotNegative
    rows: tuple[GradebookRow, ...] = ()
    kind: str = "gradebook"


@dataclass(frozen=True, kw_only=True)
class Certificate(JsonRecord):
    """A signed assessment."""

    FILE: ClassVar = "certificate.json"
    NOUN: ClassVar = "a certificate"
    COMMAND: ClassVar = "rueda assess train.py --key FILE --certificate certificate.json"

    statement: dict[str, Any] = field(default_factory=dict)
    """what is certified"""
    signature: str = ""
    """HMAC-SHA256 of the statement with the teacher's key"""
    kind: str = "certificate"
