"""The submissions of a class: each is graded by itself, and what is graded already is not graded again."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rueda.assess.assessing import Tell, assess
from rueda.assess.material import DATA, write_data
from rueda.assess.settings import Settings, Submission, read_submission
from rueda.errors import AssessError, RuedaError
from rueda.files.atomic import write_atomically
from rueda.records.assessment import Assessment, Gradebook, GradebookRow
from rueda.records.environment import environment

Ended = Callable[[GradebookRow, Assessment | None], None]


def submissions(folder: Path) -> dict[str, Path]:
    """Return the submissions of a folder by their names: ``alice.py``, or ``bob/train.py``.

    Raises:
        AssessError: there is none.
    """
    if not folder.is_dir():
        raise AssessError("--folder", expected="a folder of submissions", got=str(folder), do="correct the path")
    found = {one.stem: one for one in sorted(folder.glob("*.py"))}
    found |= {one.parent.name: one for one in sorted(folder.glob("*/train.py"))}
    if not found:
        expected = "submissions such as alice.py or alice/train.py"
        raise AssessError("--folder", expected=expected, got=f"none in {folder}", do="correct the path")
    return dict(sorted(found.items()))


def grade_class(folder: Path, results: Path, settings: Settings, tell: Tell, ended: Ended) -> Gradebook:
    """Grade all submissions of a folder; the gradebook is written again after each.

    Args:
        folder: the submissions.
        results: where the gradebook and each assessment are written; what is there already is taken from there.
        settings: what is asked for.
        tell: is called as each phase of a submission begins.
        ended: is called with each row, and with the assessment if it was made now.
    """
    found = submissions(folder)
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssessError("--output", expected="a folder", got=error.strerror, do="name another one") from None
    rows: list[GradebookRow] = []
    with tempfile.TemporaryDirectory(prefix="rueda-assess-data-") as scratch:
        data = Path(scratch, DATA)
        for learner, file in found.items():
            name = re.sub(r"[^\w.-]", "_", learner) + ".json"
            made: Assessment | None = None
            try:
                submission = read_submission(file, learner)
                known = _known(results / name, submission, settings)
                if known is None:
                    if not data.exists():
                        write_data(settings.data, data)
                    made = assess(submission, settings, partial(_tell_of, tell, learner), data=data)
                    made.save(results / name)
                rows.append(_row(known or made, name))
            except RuedaError as error:
                rows.append(GradebookRow(learner, False, 0.0, math.nan, math.nan, f"not graded: {error}", ""))
            book = _book(rows, settings)
            book.save(results / Gradebook.FILE)
            write_atomically(results / "gradebook.csv", _csv(book))
            ended(rows[-1], made)
    return book


def _tell_of(tell: Tell, learner: str, text: str) -> None:
    tell(f"{learner}: {text}")


def _known(file: Path, submission: Submission, settings: Settings) -> Assessment | None:
    """Return the assessment of the same script by the same settings, if there is one."""
    if not file.is_file():
        return None
    try:
        found = Assessment.load(file)
    except RuedaError:
        return None
    asked = (settings.data.name, settings.workers, settings.target_accuracy, settings.patience, settings.within)
    had = (found.task, found.workers, found.target_accuracy, found.patience, found.within)
    same = found.digest == hashlib.sha256(submission.text).hexdigest() and asked == had
    return found if same else None


def _row(found: Assessment | None, name: str) -> GradebookRow:
    assert found is not None
    best = max((one.accuracy for one in found.epochs if not one.note), default=math.nan)
    seconds = found.epochs[-1].seconds if found.epochs else math.nan
    return GradebookRow(found.learner, found.passed, found.points, best, seconds, "; ".join(found.reasons), name)


def _book(rows: list[GradebookRow], settings: Settings) -> Gradebook:
    return Gradebook(
        task=settings.data.name, workers=settings.workers, target_accuracy=settings.target_accuracy,
        within=settings.within, rows=tuple(rows), command=shlex.join(["rueda", *sys.argv[1:]]),
        environment=environment(),
    )  # fmt: skip


def _csv(book: Gradebook) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["learner", "passed", "points", "accuracy", "seconds", "reason"])
    for one in book.rows:
        numbers = ["" if math.isnan(value) else f"{value:.4g}" for value in (one.accuracy, one.seconds)]
        writer.writerow(
            [_safe(one.learner), "yes" if one.passed else "no", f"{one.points:g}", *numbers, _safe(one.reason)]
        )
    return text.getvalue().encode()


def _safe(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula.

    >>> _safe("=1+1"), _safe("alice")
    ("'=1+1", 'alice')
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
