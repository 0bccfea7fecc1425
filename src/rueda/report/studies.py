"""Reading a study folder: the technique table, throughput, steps to target, the linear model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rueda.errors import RunError
from rueda.records.archive import find_run, is_inside, read_archive
from rueda.records.descent import GradientDescent
from rueda.records.run import Run
from rueda.records.steps_to_target import StepsToTarget
from rueda.records.study import Study, StudyRow
from rueda.records.throughput import Throughput
from rueda.report.model import Entry, Section
from rueda.report.runs import read_run
from rueda.report.study_tables import tell_descent, tell_steps, tell_throughput
from rueda.terminal.numbers import number, things


def read_study(files: Mapping[str, Path]) -> Section:
    """Read the files of one study; what is missing is left out.

    Args:
        files: by the names that they have in a study's folder (``study.json``, ``gd.json``).

    Raises:
        RunError: a file is there but is not what its name says.
    """
    study = Study.load(files[Study.FILE]) if Study.FILE in files else None
    throughput = Throughput.load(files[Throughput.FILE]) if Throughput.FILE in files else None
    steps = StepsToTarget.load(files[StepsToTarget.FILE]) if StepsToTarget.FILE in files else None
    descent = GradientDescent.load(files[GradientDescent.FILE]) if GradientDescent.FILE in files else None
    records = [record for record in (study, throughput, steps, descent) if record is not None]
    task = records[0].task
    section = Section(
        title=task, task=task, is_study=study is not None, throughput=throughput, steps=steps, descent=descent
    )
    if throughput is not None:
        tell_throughput(section, throughput)
    if steps is not None:
        tell_steps(section, steps)
    if descent is not None:
        tell_descent(section, descent)
    if study is not None:
        section.workers = study.workers
        section.title = f"{task} on {things(study.workers, 'worker')}"
        folder = files[Study.FILE].parent
        archived = read_archive(folder)
        for row in study.rows:
            section.entries.append(_entry(row))
            _take_runs(section, folder, archived, row)
        _give_roles(section.entries)
    for record in records:
        command = getattr(record, "command", "") or record.environment.get("command")
        section.environments.append({**record.environment, "command": command})
    return section


def _entry(row: StudyRow) -> Entry:
    diverged = row.diverged > 0 or row.verdict == "diverged"
    return Entry(
        name=row.name, summary=row.summary, workers=row.workers, global_batch=row.global_batch, epochs=row.epochs,
        updates=row.updates, test_accuracy=number(row.test_accuracy),
        test_accuracy_spread=number(row.test_accuracy_spread), train_accuracy=number(row.train_accuracy),
        train_accuracy_spread=number(row.train_accuracy_spread), seconds=number(row.seconds),
        images_per_second=number(row.images_per_second), rehearsed=row.rehearsed, diverged=diverged,
        num_diverged=row.diverged, num_seeds=max(1, len(row.seeds)), against=number(row.against_one_worker),
        verdict="diverged" if diverged else row.verdict,
    )  # fmt: skip


def _take_runs(section: Section, folder: Path, archived: Mapping[str, Run], row: StudyRow) -> None:
    """Read the runs of a row; one that is missing or outside the study's folder is noted, not shown."""
    entry = section.entries[-1]
    for relative in row.runs:
        try:
            if not is_inside(folder, relative):
                section.notes.append(f"{entry.name}: the run {relative} lies outside the study's folder")
                continue
            line, notes = read_run(find_run(folder, relative, archived), entry.name)
        except (RunError, OSError, ValueError):  # no path at all is one that is missing, too
            section.notes.append(f"{entry.name}: the run {relative} is missing, empty or damaged")
            continue
        line.entry = len(section.entries) - 1
        line.rehearsed |= entry.rehearsed
        section.lines.append(line)
        section.notes += notes
        entry.rehearsed |= line.rehearsed


def _give_roles(entries: list[Entry]) -> None:
    """Say who stands out: one worker, the naive row, and the best of the others, if possible in as many epochs."""
    base = next((entry for entry in entries if entry.name == "one-worker"), None)
    base = base or next((entry for entry in entries if entry.workers == 1), None)
    if base:
        base.role = "base"
    naive = next((entry for entry in entries if entry.name == "naive"), None)
    if naive:
        naive.role = "naive"
    rest = [entry for entry in entries if entry.role == "other" and entry.test_accuracy is not None]
    rest = [entry for entry in rest if not entry.diverged and (base is None or entry.workers != base.workers)]
    rest = [entry for entry in rest if base is not None and entry.epochs == base.epochs] or rest
    if rest:
        max(rest, key=lambda entry: entry.test_accuracy or 0).role = "best"
