"""Which time is fair: that of the reference solution on this machine, with a margin."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from rueda.assess.assessing import Tell, assess
from rueda.assess.material import material
from rueda.assess.settings import Settings, Submission
from rueda.errors import AssessError
from rueda.records.assessment import Assessment

MARGIN = 2.0
"""the limit is so many times the reference solution's time: others may need an epoch more, or share the machine"""
_LONGEST = 3600.0


@dataclass(frozen=True)
class Calibration:
    """How long the reference solution takes.

    Args:
        seconds: from its first step until the target is reached.
        limit: the seconds that are fair.
        images_per_second: its throughput, on all workers.
        assessment: its assessment.
    """

    seconds: float
    limit: float
    images_per_second: float
    assessment: Assessment


def fair_limit(seconds: float) -> float:
    """Return the limit for a reference time, rounded up to ten seconds.

    >>> fair_limit(12.3), fair_limit(40.0)
    (30.0, 80.0)
    """
    return math.ceil(MARGIN * seconds / 10) * 10.0


def calibrate(settings: Settings, tell: Tell) -> Calibration:
    """Run the reference solution as a submission is run, without a limit.

    Raises:
        AssessError: it does not pass.
    """
    submission = Submission(learner="reference", file=Path("reference.py"), text=material("reference"))
    found = assess(submission, replace(settings, within=_LONGEST), tell)
    if not found.passed:
        do = "lower --target-accuracy, or see what differs on this machine"
        raise AssessError("the reference solution", expected="passed", got="; ".join(found.reasons), do=do)
    reached = _reached(found, settings)
    rate = sum(one.examples for one in found.epochs) / found.epochs[-1].seconds
    return Calibration(reached, fair_limit(reached), rate, found)


def _reached(found: Assessment, settings: Settings) -> float:
    """Return when the last of the consecutive epochs was saved that reach the target."""
    row = 0
    for one in found.epochs:
        row = row + 1 if one.accuracy >= settings.target_accuracy and not one.note else 0
        if row == settings.patience:
            return one.seconds
    return found.epochs[-1].seconds
