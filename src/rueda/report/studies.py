"""The reader of study folders: the technique table, throughput, steps to a target, the linear model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rueda.errors import RunError
from rueda.records.archive import find_run, is_inside, read_archive
from rueda.records.run import Run
from rueda.records.study import BASELINE, NAIVE, Study, StudyRow, control_of, remedies
from rueda.report.kinds import STUDIES
from rueda.report.model import Entry, Section
from rueda.report.runs import read_run, typical
from rueda.report.study_tables import ADDED
from rueda.report.table import further_figures
from rueda.terminal.numbers import number, things
from rueda.terminal.study_words import borrowed, how_chosen, other_lengths, reported, undecided

MEASURED = {
    "epochs": "epochs", "updates": "updates", "test": "value", "test_spread": "spread", "train": "training",
    "train_spread": "training_spread", "validation": "validation", "seconds": "seconds",
    "images_per_second": "images_per_second",
}  # fmt: skip
"""numbers of a row of the page, and their names in a row of the study; a number that is not finite becomes None"""
SHARED = ("name", "summary", "workers", "global_batch", "rehearsed", "epochs_range", "updates_range")


def read_study(files: Mapping[str, Path]) -> Section:
    """Read the files of one study into a section; parts whose file is missing are left out.

    Args:
        files: the files by their usual names (``study.json``, ``gd.json``).

    Raises:
        RunError: a file is damaged or is another record.
    """
    records = [record.load(files[record.FILE]) for record in STUDIES if record.FILE in files]
    section = Section(title=records[0].task, task=records[0].task)
    for record in records:
        if isinstance(record, Study):
            _add_study(section, record, files[Study.FILE].parent)
        else:
            ADDED[type(record)](section, record)
        section.environments.append(record.provenance)
    return section


def _add_study(section: Section, study: Study, folder: Path) -> None:
    section.is_study, section.metric, section.unit = True, study.metric, study.unit
    section.tolerance = study.tolerance
    section.title = f"{study.task} on {things(study.workers, 'worker')}"
    archived = read_archive(folder)
    for row in study.ordered():
        diverged = row.diverged > 0 or row.verdict == "diverged"
        same: dict[str, Any] = {name: getattr(row, name) for name in SHARED}
        measured: dict[str, Any] = {name: number(getattr(row, of)) for name, of in MEASURED.items()}
        section.entries.append(
            Entry(
                **same, **measured, diverged=diverged, num_diverged=row.diverged, num_seeds=max(1, len(row.seeds)),
                against=number(row.against_one_worker), interval=row.interval,
                verdict="diverged" if diverged else row.verdict, others=row.others,
            )
        )  # fmt: skip
        _take_runs(section, folder, archived, row)
    _give_roles(section, study)
    section.told += filter(None, [how_chosen(study), other_lengths(study), undecided(study.rows), borrowed(study.rows)])
    section.tables += further_figures(section)


def _take_runs(section: Section, folder: Path, archived: Mapping[str, Run], row: StudyRow) -> None:
    """Read the runs of a row; a run that is missing or outside the study's folder is noted and left out."""
    entry = section.entries[-1]
    for relative in row.runs:
        try:
            if not is_inside(folder, relative):
                section.notes.append(f"{entry.name}: the run {relative} lies outside the study's folder")
                continue
            line, notes = read_run(find_run(folder, relative, archived), entry.name)
        except (RunError, OSError, ValueError):  # a name that is not a valid path counts as missing
            section.notes.append(f"{entry.name}: the run {relative} is missing, empty or damaged")
            continue
        line.entry = len(section.entries) - 1
        line.rehearsed |= entry.rehearsed
        section.lines.append(line)
        section.notes += notes
        entry.rehearsed |= line.rehearsed
    own = (line for line in section.lines if section.entries[line.entry] is entry)
    entry.model_flops_utilisation = typical(own, "model_flops_utilisation")


def _give_roles(section: Section, study: Study) -> None:
    """Mark the rows of the headline: one worker, the naive row, the best of the others, and the best row's control.

    The best row is chosen by the study (:meth:`Study.best`); where fresh seeds have confirmed it, the row of these
    stands for it. Its control is the row of one worker that has the most of the control's remedies and no other.
    """
    entries = section.entries
    base = next((entry for entry in entries if entry.name == BASELINE), None)
    base = base or next((entry for entry in entries if entry.workers == 1), None)
    if base:
        base.role = "base"
    naive = next((entry for entry in entries if entry.name == NAIVE), None)
    if naive:
        naive.role = "naive"
    chosen, strongest = study.best(), study.strongest()
    if chosen is None or chosen.name == NAIVE:
        return
    shown = reported(study, chosen)
    best = next(entry for entry in entries if entry.name == shown.name)
    best.role = "best"
    if strongest is not None:
        section.strongest, section.remains = strongest.name, study.compare(shown, strongest)
    remedy = {*remedies(best.name), *remedies(control_of(best.name) or BASELINE)}
    rest = [entry for entry in entries if entry.role == "other" and entry.test is not None]
    controls = [entry for entry in rest if entry.workers == 1 and set() < set(remedies(entry.name)) <= remedy]
    if controls:
        max(controls, key=lambda entry: len(remedies(entry.name))).role = "control"
