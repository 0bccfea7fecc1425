"""The assessment of one submission, from the script to the record."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rueda.assess.evaluation import EvaluationAnswer, EvaluationRequest, evaluate_apart
from rueda.assess.grading import Grades, grade, grade_too_large
from rueda.assess.material import DATA, material, write_data
from rueda.assess.running import RunAnswer, RunRequest, run_apart
from rueda.assess.settings import Settings, Submission
from rueda.records.assessment import Assessment
from rueda.records.environment import environment

_SHAPES = {"glyphs": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar-10": (3, 32, 32)}
_CLAIM = re.compile(rb"acc\w*\D{0,12}?(\d+(?:\.\d+)?)\s*(%?)", re.IGNORECASE)
_OUTPUT_BYTES = 1 << 20

Tell = Callable[[str], None]


def assess(
    submission: Submission, settings: Settings, tell: Tell = lambda text: None, *, data: Path | None = None
) -> Assessment:
    """Grade a submission.

    Args:
        submission: the script.
        settings: what is asked for.
        tell: is called as each phase begins.
        data: the data of the task, if they are written already.
    """
    if (refused := grade_too_large(submission.text)) is not None:
        return _record(submission, settings, refused, None, None)
    folder = Path(tempfile.mkdtemp(prefix="rueda-assess-"))
    try:
        os.chmod(folder, 0o711)  # the script's user passes through it
        tell("preparing the data")
        prepare(folder / "given", submission, settings, data)
        tell(f"training on {settings.workers} workers, at most {settings.within:g} s")
        request = RunRequest(
            folder=folder, workers=settings.workers, within=settings.within, shape=_SHAPES[settings.data.name]
        )
        run = run_apart(request)
        tell("evaluating the saved epochs")
        seed = secrets.randbits(48)
        found = evaluate_apart(
            EvaluationRequest(folder=folder, data=settings.data, workers=settings.workers, seed=seed)
        )
        grades = grade(settings, run, found, _claimed(folder / "output"))
        return _record(submission, settings, grades, run, found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepare(given: Path, submission: Submission, settings: Settings, data: Path | None = None) -> None:
    """Make the folder that the script can read: the script, and the grader's own copies of the task and its data."""
    given.mkdir(mode=0o755)
    (given / "train.py").write_bytes(submission.text)
    (given / "task.py").write_bytes(material("task"))
    if data is None:
        write_data(settings.data, given / DATA)
    else:
        shutil.copyfile(data, given / DATA)
    for one in given.iterdir():
        one.chmod(0o444)


def _claimed(folder: Path) -> float | None:
    """Return the highest accuracy that a script has printed."""
    found = []
    for file in sorted(folder.glob("rank-*.log")):
        with file.open("rb") as stream:
            for number, percent in _CLAIM.findall(stream.read(_OUTPUT_BYTES)):
                value = float(number) / (100 if percent or float(number) > 1 else 1)
                found += [value] if value <= 1 else []
    return max(found, default=None)


def _record(
    submission: Submission, settings: Settings, grades: Grades, run: RunAnswer | None, found: EvaluationAnswer | None
) -> Assessment:
    notes = [f"files beside the script were not taken: {', '.join(submission.others)}"] if submission.others else []
    notes += list(run.unseen) if run is not None else []
    if submission.text == material("reference"):
        notes.append("this is the reference solution itself")
    return Assessment(
        learner=submission.learner, script=submission.file.name,
        digest=hashlib.sha256(submission.text).hexdigest(), task=settings.data.name, workers=settings.workers,
        target_accuracy=settings.target_accuracy, patience=settings.patience, within=settings.within,
        criteria=tuple(grades.criteria), epochs=found.epochs if found is not None else (),
        checks=run.checks if run is not None else (), isolation=run.isolation if run is not None else (),
        notes=tuple(notes), passed=grades.passed, points=grades.points,
        environment=(about := environment()), command=about["command"],
    )  # fmt: skip
