"""The archive of a study: all its runs in one file of JSON lines, ``runs.jsonl``, small enough to be committed.

::

    {"kind": "archive", "format": 1, "recipe": {...}}                          all fields of the first run's recipe
    {"kind": "environment", "number": 1, "about": {"machine": ..., "commit": ...}}   shared by several runs
    {"kind": "run", "run": "runs/naive-seed0", "environment": 1, "num_rows": 5, "recipe": {"workers": 8}}
    {"kind": "epoch", "run": "runs/naive-seed0", "epoch": 1, "test_accuracy": 0.31, ...}

The recipe of a run holds the fields that differ from the first run's. The rows have the fields of ``metrics.jsonl``,
rounded to six digits, without those that have their default. ``study.json`` lies beside the file and names the runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rueda.errors import RecipeError, RunError, read_failure
from rueda.files.atomic import plain, write_atomically
from rueda.files.text import read_text
from rueda.records.descent import GradientDescent
from rueda.records.json_record import FORMAT, demand, read_record
from rueda.records.parallelism import Parallelism
from rueda.records.recipe.recipe import Recipe, field_names
from rueda.records.run import Row, Run
from rueda.records.steps_to_target import StepsToTarget
from rueda.records.study import Study
from rueda.records.throughput import Throughput

FILE = "runs.jsonl"
_SHARED = ("machine", "versions", "commit", "provenance")
_OTHERS = (Throughput.FILE, StepsToTarget.FILE, GradientDescent.FILE, Parallelism.FILE)
_BESIDE = (FILE, Study.FILE, *_OTHERS, "README.md", "report.html")
"""the files that an archive's folder may contain"""
_AGAIN = "make it again with `rueda archive`"
_DEFAULTS: dict[str, Any] = {item.name: {} if item.default_factory is dict else item.default for item in fields(Row)}


class Archived(NamedTuple):
    """The result of :func:`archive_study`."""

    file: Path
    num_runs: int
    modified: tuple[str, ...]
    """the commits, marked ``+``, of runs that were trained from a modified work tree"""


@dataclass(frozen=True, kw_only=True)
class _RunLine:
    """The line that describes a run."""

    run: str
    environment: int
    num_rows: int | None = None
    """how many rows follow, which tells whether the file was cut; None in older files"""
    about: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ArchivedRun(Run):
    """A run in an archive, which is read like a run folder and cannot be written."""

    file: Path
    about: Mapping[str, Any]
    values: Mapping[str, Any]
    """the values of all fields of the recipe"""
    reasons: Mapping[str, str]
    lines: tuple[tuple[int, dict[str, Any]], ...]
    """the rows of the run, with their line numbers"""

    @property
    def metrics_file(self) -> Path:
        """The path of the archive."""
        return self.file

    def recipe(self) -> Recipe:
        """Return the recipe."""
        return Recipe().with_values(self.values).change(reasons=self.reasons)

    def environment(self) -> dict[str, Any]:
        """Return the task, machine, versions, commit and command of the run."""
        return dict(self.about)

    def _check_writable(self) -> NoReturn:
        raise RunError(f"{self.file}: expected a run folder to write, got an archive; use the study's own folder")

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from self.lines


def archive_study(folder: Path | str, to: Path | str) -> Archived:
    """Copy the records and rows of a study into a folder, without checkpoints; ``rueda archive`` calls it.

    Args:
        folder: the folder of the study.
        to: the folder of the archive; an older archive of the same study is replaced.

    Raises:
        RunError: the folder holds no study with runs, a run is missing, damaged or outside the folder, or ``to`` holds
            something else.
    """
    folder, to = Path(folder), Path(to)
    study = Study.load(folder)
    if (to / "runs").exists() or to.resolve() == folder.resolve():
        raise RunError(f"{to}: expected another folder than a study's own, got one with runs; choose a new one")
    _refuse_something_else(to, study)
    archived = read_archive(folder)
    names = [name for row in study.rows for name in row.runs]
    for name in names:
        if not is_inside(folder, name):
            raise RunError(f"{folder / Study.FILE}: expected runs in its folder, got {name!r}; correct the file")
    if not names:
        raise RunError(f"{folder}: expected a study with runs, got none; finish the study before it is archived")
    runs = {name: find_run(folder, name, archived) for name in names}
    content, modified = _content(runs)
    write_atomically(to / FILE, content.encode())
    for name in (Study.FILE, *_OTHERS):
        if (folder / name).exists():
            write_atomically(to / name, (folder / name).read_bytes())
        else:
            (to / name).unlink(missing_ok=True)  # of the archive that is replaced
    return Archived(to / FILE, len(runs), modified)


def is_inside(folder: Path, name: str) -> bool:
    """Tell whether a run that a study names lies in the study's folder."""
    try:
        return (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # the name is not a valid path
        return False


def _refuse_something_else(to: Path, study: Study) -> None:
    """Raise RunError unless a folder is empty or holds an older archive of the same study."""
    try:
        found = {file.name for file in to.iterdir() if not file.name.startswith(".")}
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{to}: expected a folder for an archive, got: {error.strerror}; choose another one") from None
    strange = sorted(found - set(_BESIDE if FILE in found else _BESIDE[-2:]))
    if strange:
        raise RunError(f"{to}: expected an empty folder or an older archive, got {strange[0]}; choose another folder")
    if FILE in found:
        old = Study.load(to)
        other = "choose another folder"
        if old.settings != study.settings:
            raise RunError(f"{to} holds a study of {old.settings}, but now the request is {study.settings}; {other}")
        recipes = [one.base_recipe(where, other) for one, where in ((old, to), (study, Path(Study.FILE))) if one.recipe]
        if len(recipes) == 2 and recipes[0] != recipes[1]:  # an older study has no recipe
            raise RunError(f"{to} holds a study with another base recipe; choose another folder")
        if old.task_file and study.task_file and old.task_file != study.task_file:
            raise RunError(f"{to} holds a study of another version of the task file; choose another folder")


def find_run(folder: Path, name: str, archived: Mapping[str, Run]) -> Run:
    """Return a run of a study from its folder, or else from the archive.

    Args:
        folder: the folder of the study.
        name: the path of the run in the folder, as in ``study.json``.
        archived: the result of :func:`read_archive`.
    """
    return Run(folder / name) if (folder / name).is_dir() else archived.get(name, Run(folder / name))


def read_archive(folder: Path) -> dict[str, Run]:
    """Return the runs of an archived study by name; empty if the folder has no archive.

    Raises:
        RunError: the file is damaged or of another format.
    """
    file = folder / FILE
    try:
        lines = read_text(file).splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file}: expected an archive of runs, got: {read_failure(error)}; {_AGAIN}") from None
    base: dict[str, Any] = {}
    environments: dict[int, dict[str, Any]] = {}
    found: dict[str, _RunLine] = {}
    rows: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            kind = data["kind"] if isinstance(data, dict) else None
            demand((kind == "archive") == (number == 1), "kind", "archive in the first line alone", kind)
            if kind == "archive":
                demand(data.get("format") == FORMAT, "format", str(FORMAT), data.get("format"))
                base = dict(data["recipe"])
            elif kind == "environment":
                environments[data["number"]] = dict(data["about"])
            elif kind == "run":
                about = read_record(_RunLine, data, "run")
                demand(about.run not in found, "run", "each name once", about.run)
                found[about.run], rows[about.run] = about, []
                demand(about.environment in environments, "environment", "one with a line above", about.environment)
            else:
                rows[data["run"]].append((number, data))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            what = f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error)
            raise RunError(f"{file}, line {number}: expected a line of an archive, got: {what}; {_AGAIN}") from None
    if not found:
        raise RunError(f"{file}: expected an archive of runs, got none; {_AGAIN}")
    for name, about in found.items():
        if about.num_rows not in (None, len(rows[name])):
            raise RunError(f"{file}: expected {about.num_rows} rows of {name}, got {len(rows[name])}; {_AGAIN}")
    return {
        name: ArchivedRun(
            folder / name, file, {**environments[line.environment], **line.about}, {**base, **line.recipe},
            line.reasons, tuple(rows[name]),
        )
        for name, line in found.items()
    }  # fmt: skip


def _content(runs: Mapping[str, Run]) -> tuple[str, tuple[str, ...]]:
    lines: list[dict[str, Any]] = []
    environments: list[dict[str, Any]] = []
    base: Recipe | None = None
    for name, run in runs.items():
        try:
            recipe = run.recipe()
        except RecipeError as error:
            raise RunError(str(error)) from None
        if base is None:
            base = recipe
            values = {field_name: getattr(base, field_name) for field_name in field_names()}
            lines.append({"kind": "archive", "format": FORMAT, "recipe": values})
        about = run.environment()
        about.pop("task_file", None)  # a path of this machine; study.json has the checksum
        shared = {key: about.pop(key) for key in _SHARED if key in about}
        if shared not in environments:
            environments.append(shared)
            lines.append({"kind": "environment", "number": len(environments), "about": shared})
        rows, measurements = run.all_rows()
        if not rows:
            raise RunError(f"{run.folder}: expected rows, got none; finish the study before it is archived")
        line = _RunLine(
            run=name, environment=environments.index(shared) + 1, num_rows=len(rows) + len(measurements), about=about,
            recipe=recipe.changes_from(base), reasons=dict(recipe.reasons),
        )  # fmt: skip
        lines.append({"kind": "run", **{key: value for key, value in asdict(line).items() if value != {}}})
        kept = [_without_defaults(asdict(row)) for row in rows] + [json.loads(row.to_json()) for row in measurements]
        lines += [{"kind": row.pop("kind"), "run": name, **_rounded(row)} for row in kept]
    modified = {str(about.get("commit")) for about in environments if str(about.get("commit")).endswith("+")}
    return "".join(json.dumps(plain(line)) + "\n" for line in lines), tuple(sorted(modified))


def _without_defaults(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name == "kind" or value != _DEFAULTS[name]}


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Round the numbers of a row to six digits, as the report does."""
    return {
        name: _rounded(value)
        if isinstance(value, dict)
        else float(f"{value:.6g}")
        if isinstance(value, float)
        else value
        for name, value in row.items()
    }
