"""``rueda assess`` on the terminal: progress, the table, files."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rueda.assess.assessing import assess
from rueda.assess.calibration import MARGIN, calibrate
from rueda.assess.certificate import certify, is_genuine, read_key
from rueda.assess.class_grading import grade_class, submissions
from rueda.assess.material import new_task
from rueda.assess.settings import Settings, read_submission
from rueda.files.atomic import check_writable
from rueda.records.assessment import Certificate, Gradebook
from rueda.records.json_record import JsonRecord
from rueda.report.kinds import READERS
from rueda.terminal.numbers import percent
from rueda.terminal.phases import PhasesProgress
from rueda.terminal.table import print_table

_PHASES = 3


def make_task(folder: Path, settings: Settings) -> None:
    """Make the folder of a learner."""
    with PhasesProgress(speak=True, phases=1) as bar:
        new_task(folder, settings, bar.phase)
    print(f"{folder}: read README.md there, then change train.py")


def grade_script(
    script: Path,
    settings: Settings,
    *,
    name: str = "",
    output: Path | None = None,
    key: Path | None = None,
    certificate: Path | None = None,
) -> int:
    """Grade one submission, print the result and write it; return the exit status: 0 if it has passed, else 1."""
    submission = read_submission(script, name)
    secret = read_key(key) if key is not None else None
    for file in (output, certificate):
        if file is not None:
            check_writable(file)  # an error now rather than after the training
    with PhasesProgress(speak=True, phases=_PHASES) as bar:
        found = assess(submission, settings, bar.phase)
    show(found)
    if output is not None:
        found.save(output)
    if secret is None:
        print("This is a trial: without the teacher's key (--key) nothing is signed.")
    elif certificate is not None and found.passed:
        certify(found, secret).save(certificate)
        print(f"{certificate}: signed")
    return 0 if found.passed else 1


def grade_folder(folder: Path, settings: Settings, results: Path) -> int:
    """Grade a class; return 0 once every submission has a result, whatever it is."""
    number = len(submissions(folder))
    with PhasesProgress(speak=True, phases=_PHASES * number) as bar:
        book = grade_class(
            folder, results, settings, bar.phase,
            lambda row, made: bar.say(
                f"{row.learner}: {'passed' if row.passed else 'failed'}, {row.points:g} points"
                + ("" if made is not None else " (not graded again)" if row.file else "")
            ),
        )  # fmt: skip
    show(book)
    print(f"{results / 'gradebook.csv'}, {results / Gradebook.FILE}; a page: rueda report {shlex.quote(str(results))}")
    return 0


def show(found: JsonRecord) -> None:
    """Print the tables of a record's page, and its sentences."""
    section = READERS[type(found)](found)
    for table in section.tables:
        print_table(table.on_terminal(table.title))
    for sentence in section.told:
        print(sentence)


def calibrate_here(settings: Settings, output: Path | None) -> int:
    """Measure the reference solution and say which limit is fair."""
    with PhasesProgress(speak=True, phases=_PHASES) as bar:
        found = calibrate(settings, bar.phase)
    print(
        f"The reference solution reaches {percent(settings.target_accuracy)} in {found.seconds:.1f} s on "
        f"{settings.workers} workers, at {found.images_per_second:,.0f} images/s."
    )
    print(
        f"A fair limit on this machine is --within {found.limit:g}: {MARGIN:g} times that, rounded up to ten seconds."
    )
    if output is not None:
        found.assessment.save(output)
    return 0


def verify(file: Path, key: Path) -> int:
    """Say whether a certificate is genuine; return 0 if it is, else 1."""
    secret, found = read_key(key), Certificate.load(file)
    if not is_genuine(found, secret):
        print(f"rueda: {file}: refused: it was changed, or signed with another key", file=sys.stderr)
        return 1
    said = found.statement
    print(
        f"{file}: genuine: {said.get('learner')} has {'passed' if said.get('passed') else 'failed'} with "
        f"{said.get('points'):g} points ({said.get('task')}, {said.get('workers')} workers, {said.get('time')})"
    )
    return 0
