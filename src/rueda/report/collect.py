"""From the paths that were asked for to the sections of the page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rueda.errors import RunError, explain
from rueda.report.kinds import KINDS, kinds_in, read_kinds
from rueda.report.model import Section
from rueda.report.noise_scales import add_noise_scale
from rueda.report.runs import is_run, read_run, to_entry
from rueda.report.studies import FILES, is_study, read_study


def collect(paths: Iterable[Path]) -> list[Section]:
    """Read studies and runs: a section a study, and one for the runs of each task.

    Args:
        paths: study folders (or a file in one), run folders, or folders that hold some.

    Raises:
        RunError: a path is none of these, a file is damaged, or nothing was asked for.
    """
    studies: list[Section] = []
    others: list[Section] = []
    loose: dict[str, Section] = {}
    for folder in _unique(place for path in paths for place in _places(Path(path))):
        others += read_kinds(folder)
        if is_study(folder):
            studies.append(read_study(folder))
        if is_study(folder) or not is_run(folder):
            continue
        line, notes = read_run(folder, folder.resolve().name)
        section = loose.setdefault(line.task, Section(title=line.task, task=line.task))
        line.entry = len(section.entries)
        section.entries.append(to_entry(line))
        section.lines.append(line)
        section.notes += notes
    if not studies and not loose and not others:
        raise RunError("report: expected at least one run or study folder, got none; name one, such as runs/NAME")
    trained = studies + list(loose.values())
    for section in trained:
        add_noise_scale(section)
    return trained + others


def _places(path: Path) -> list[Path]:
    if path.is_file() and path.name in (*FILES, *KINDS, "metrics.jsonl", "environment.json"):
        path = path.parent
    if _has_something(path):
        return [path]
    inside = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    inside = [child for child in inside if _has_something(child)]
    if not inside:
        got = "a folder without any" if path.is_dir() else "a file" if path.exists() else "nothing there"
        raise RunError(
            explain(
                str(path),
                expected="a run folder (metrics.jsonl) or a study folder (study.json)",
                got=got,
                do="check the path",
            )
        )
    return inside


def _has_something(folder: Path) -> bool:
    return is_study(folder) or is_run(folder) or bool(kinds_in(folder))


def _unique(places: Iterable[Path]) -> list[Path]:
    return list({place.resolve(): place for place in places}.values())
