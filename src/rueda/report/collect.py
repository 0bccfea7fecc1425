"""Read the paths of a report into the sections of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rueda.errors import RunError
from rueda.records.archive import FILE as ARCHIVE
from rueda.records.run import Run
from rueda.report.figures.noise_scale import add_noise_scale
from rueda.report.kinds import FILES, STUDIES, found_in, read_others
from rueda.report.model import Section
from rueda.report.runs import group_seeds, is_run, primary, read_run, to_entry
from rueda.report.studies import read_study
from rueda.report.table import further_figures


def collect(paths: Iterable[Path]) -> list[Section]:
    """Read studies and runs into sections: one for each study, and one for the runs of each task.

    Args:
        paths: study folders (or a file in one), run folders, folders that hold such folders, or files that Rueda
            wrote under any name (``rueda measure --output glyphs.json``).

    Raises:
        RunError: a path is none of these, a file is damaged, or there is no path.
    """
    studies: list[tuple[Section, Path]] = []
    others: list[tuple[Section, Path]] = []
    loose: dict[str, Section] = {}
    places = {place.resolve(): place for path in paths for place in _folders(path)}
    for place in places.values():
        found = found_in(place)
        others += [(section, place) for section in read_others(found)]
        if any(record.FILE in found for record in STUDIES):
            studies.append((read_study(found), place))
        elif is_run(place):
            line, notes = read_run(Run(place), place.resolve().name)
            section = loose.setdefault(line.task, Section(title=line.task, task=line.task))
            section.lines.append(line)
            section.notes += notes
    for section in loose.values():
        section.metric = primary(section.lines)
        section.unit = next((line.unit for line in section.lines), section.unit)
        for index, lines in enumerate(group_seeds(section.lines)):
            section.entries.append(to_entry(lines))
            for line in lines:
                line.entry = index
        section.tables += further_figures(section)
    if not studies and not loose and not others:
        raise RunError("report: expected at least one run or study folder, got none; name one, such as runs/NAME")
    trained = [*studies, *((section, Path("runs")) for section in loose.values())]
    for section, _ in trained:
        add_noise_scale(section)
    return _with_unique_titles([*trained, *others])


def _with_unique_titles(found: list[tuple[Section, Path]]) -> list[Section]:
    """Add the folder's name, or else a number, to headings that occur more than once (two studies of one task)."""
    same = Counter(section.title for section, _ in found)
    seen: Counter[str] = Counter()
    for section, place in found:
        if same[section.title] > 1:
            section.title += f": {place.resolve().name}"
        seen[section.title] += 1
        if seen[section.title] > 1:
            section.title += f" ({seen[section.title]})"
    return [section for section, _ in found]


def _folders(path: Path) -> list[Path]:
    if path.is_file() and path.name in (*FILES, "metrics.jsonl", "environment.json", ARCHIVE):
        path = path.parent
    if _has_something(path):
        return [path]
    inside = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    inside = [child for child in inside if _has_something(child)]
    if not inside:
        got = "a folder without any" if path.is_dir() else "another file" if path.exists() else "no such path"
        expected = "a run folder (metrics.jsonl), a study folder (study.json) or a JSON file that Rueda wrote"
        raise RunError(str(path), expected=expected, got=got, do="check the path")
    return inside


def _has_something(place: Path) -> bool:
    return bool(found_in(place)) or is_run(place)
