"""Reading a study folder: the technique table, throughput, steps to target, the linear model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rueda.errors import RunError
from rueda.records.study import Study, StudyRow
from rueda.report.kinds import STUDIES
from rueda.report.model import Entry, Section, numbers, short, whole
from rueda.report.runs import read_run
from rueda.report.study_tables import rows_of, tell
from rueda.terminal.numbers import number, things


def read_study(files: Mapping[str, Path]) -> Section:
    """Read the files of one study; what is missing is left out.

    Args:
        files: by the names that they have in a study's folder (``study.json``, ``gd.json``).

    Raises:
        RunError: a file is there but is not what its name says.
    """
    study = Study.load(files["study.json"]) if "study.json" in files else None
    others = {kind: name for name, kind in STUDIES.items() if name in files and name != "study.json"}
    found = {kind: _load(files[name], kind) for kind, name in others.items()}
    first = next(iter(found.values()), {})
    task = study.task if study is not None else str(first.get("task") or ("linear" if "gd" in found else "task"))
    section = Section(title=task, task=task, is_study=study is not None)
    section.throughput = _points(found.get("throughput"), ("batch", "images_per_second", "spread"), "images_per_second")
    section.steps = _points(found.get("steps-to-target"), ("batch", "updates", "examples", "rate"), "updates")
    section.gd = _descent(found.get("gd"))
    for kind, answer in found.items():
        tell(section, kind, answer)
    if study is not None:
        section.workers = study.workers
        section.title = f"{task} on {things(study.workers, 'worker')}"
        section.environments.append({**study.environment, "command": study.command or _command(study.environment)})
        for row in study.rows:
            section.entries.append(_entry(row))
            _take_runs(section, files["study.json"].parent, row)
        _give_roles(section.entries)
    for answer in found.values():
        about = answer.get("environment")
        section.environments.append(
            {**(about if isinstance(about, dict) else {}), "command": answer.get("command") or _command(about)}
        )
    return section


def _load(file: Path, kind: str) -> dict[str, Any]:
    try:
        answer = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: expected the JSON of a study, got: {error}; run the study again") from None
    got = answer.get("kind") if isinstance(answer, dict) else type(answer).__name__
    if not isinstance(answer, dict) or got != kind:
        raise RunError(f"{file}: expected an object with kind = {kind!r}, got {got!r}; run the study again")
    if answer.get("format") != 1:
        raise RunError(f"{file}: expected format 1, got {answer.get('format')!r}; use the Rueda that wrote it")
    wanted = "rows" if kind == "gd" else "points"
    if not isinstance(answer.get(wanted), list):
        raise RunError(f"{file}: expected a list of {wanted}, got {answer.get(wanted)!r}; run the study again")
    return answer


def _command(about: Any) -> Any:
    return about.get("command") if isinstance(about, dict) else None


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


def _take_runs(section: Section, folder: Path, row: StudyRow) -> None:
    """Read the runs of a row; one that is missing or outside the study's folder is noted, not shown."""
    entry = section.entries[-1]
    for relative in row.runs:
        try:
            place = (folder / relative).resolve()
            if not place.is_relative_to(folder.resolve()):
                section.notes.append(f"{entry.name}: the run {relative} lies outside the study's folder")
                continue
            line, notes = read_run(place, entry.name)
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


def _points(answer: dict[str, Any] | None, names: tuple[str, ...], needed: str) -> dict[str, Any] | None:
    if answer is None:
        return None
    rows = rows_of(answer["points"], names, needed)
    if not rows:
        return None
    kept: dict[str, Any] = {name: [row[name] for row in rows] for name in names}
    for name in ("saturates_at", "target_accuracy"):
        kept[name] = number(answer.get(name))
    fit = answer.get("fit")
    if isinstance(fit, dict):
        values = {name: number(fit.get(name)) for name in ("smallest_updates", "smallest_examples", "critical_batch")}
        interval = numbers(fit.get("interval"))
        if all(value is not None and value > 0 for value in values.values()):
            kept["fit"] = {**values, "interval": interval if len(interval) == 2 and None not in interval else None}
    return kept


def _descent(answer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Take the paths of the linear model, and of its data the moments that give the loss everywhere."""
    if answer is None:
        return None
    paths = []
    listed = answer.get("paths")
    for path in listed if isinstance(listed, list) else []:
        if isinstance(path, dict):
            steps = list(zip(numbers(path.get("w")), numbers(path.get("b")), strict=False))
            steps = [(w, b) for w, b in steps if w is not None and b is not None]
            if steps:
                ws, bs = ([short(value) for value in values] for values in zip(*steps, strict=True))
                paths.append({"batch": whole(path.get("batch")), "w": ws, "b": bs})
    data = answer.get("data")
    pairs = list(zip(numbers(data.get("x")), numbers(data.get("y")), strict=False)) if isinstance(data, dict) else []
    complete = [(x, y) for x, y in pairs if x is not None and y is not None]
    return {"paths": paths, "moments": moments(complete)}


def moments(pairs: list[tuple[float, float]]) -> dict[str, float] | None:
    """Give the five means from which the mean squared error of ``y ≈ w x + b`` follows in closed form.

    ``L(w, b) = w² <xx> + b² + 2 w b <x> - 2 w <xy> - 2 b <y> + <yy>``

    >>> moments([(0.0, 1.0), (2.0, 3.0)])
    {'x': 1.0, 'y': 2.0, 'xx': 2.0, 'xy': 3.0, 'yy': 5.0}
    """
    if not pairs:
        return None
    terms = [{"x": x, "y": y, "xx": x * x, "xy": x * y, "yy": y * y} for x, y in pairs]
    return {name: sum(term[name] for term in terms) / len(terms) for name in terms[0]}
