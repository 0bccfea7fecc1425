"""Reading a study folder: the technique table, throughput, steps to target, the linear model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rueda.errors import RunError
from rueda.report.model import Entry, Section, number, numbers, short, whole
from rueda.report.runs import read_run

FILES = {"study.json": "techniques", "throughput.json": "throughput", "steps.json": "steps-to-target", "gd.json": "gd"}
"""the files of a study folder, and what each must say of itself"""


def is_study(folder: Path) -> bool:
    """Say whether a folder holds a file of a study."""
    return any((folder / name).is_file() for name in FILES)


def read_study(folder: Path) -> Section:
    """Read what stands in a study folder; what is missing is left out.

    Raises:
        RunError: a file is there but is not what its name says.
    """
    found = {kind: _load(folder / name, kind) for name, kind in FILES.items() if (folder / name).is_file()}
    first = next(iter(found.values()))
    study = found.get("techniques", {})
    task = str(first.get("task") or ("linear" if "gd" in found else "task"))
    section = Section(title=task, task=task, is_study="techniques" in found, workers=whole(study.get("workers")))
    section.throughput = _points(found.get("throughput"), ("batch", "images_per_second", "spread"), "images_per_second")
    section.steps = _points(found.get("steps-to-target"), ("batch", "updates", "examples", "rate"), "updates")
    section.gd = _descent(found.get("gd"))
    for answer in found.values():
        about = answer.get("environment")
        section.environments.append(
            {**(about if isinstance(about, dict) else {}), "command": answer.get("command") or _command(about)}
        )
    for row in study.get("rows", []):
        if isinstance(row, dict):
            section.entries.append(_entry(row))
            _take_runs(section, folder, row)
    _give_roles(section.entries)
    if section.workers:
        section.title = f"{task} on {section.workers:,} worker{'s' * (section.workers != 1)}"
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
    wanted = "points" if kind in ("throughput", "steps-to-target") else "rows"
    if not isinstance(answer.get(wanted), list):
        raise RunError(f"{file}: expected a list of {wanted}, got {answer.get(wanted)!r}; run the study again")
    return answer


def _command(about: Any) -> Any:
    return about.get("command") if isinstance(about, dict) else None


def _entry(row: Mapping[str, Any]) -> Entry:
    seeds, runs = row.get("seeds"), row.get("runs")
    verdict = row.get("verdict")
    num_diverged = whole(row.get("diverged")) or 0
    diverged = row.get("diverged") is True or num_diverged > 0 or verdict == "diverged"
    measured: dict[str, Any] = {
        name: number(row.get(name))
        for name in (
            *("epochs", "updates", "test_accuracy", "test_accuracy_spread", "train_accuracy"),
            *("train_accuracy_spread", "seconds", "images_per_second"),
        )
    }
    return Entry(
        name=str(row.get("name") or "unnamed"),
        summary=str(row.get("summary") or ""),
        workers=whole(row.get("workers")),
        global_batch=whole(row.get("global_batch")),
        rehearsed=row.get("rehearsed") is True,
        diverged=diverged,
        num_diverged=num_diverged,
        num_seeds=max(1, len(seeds) if isinstance(seeds, list) else len(runs) if isinstance(runs, list) else 1),
        against=number(row.get("against_one_worker")),
        verdict="diverged" if diverged else verdict if verdict in ("kept", "lost") else None,
        **measured,
    )


def _take_runs(section: Section, folder: Path, row: Mapping[str, Any]) -> None:
    """Read the runs of a row; one that is missing or outside the study's folder is noted, not shown."""
    entry = section.entries[-1]
    runs = row.get("runs")
    for relative in runs if isinstance(runs, list) else []:
        place = (folder / str(relative)).resolve()
        if not place.is_relative_to(folder.resolve()):
            section.notes.append(f"{entry.name}: the run {relative} lies outside the study's folder")
            continue
        try:
            line, notes = read_run(place, entry.name)
        except RunError:
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
    rows = [{name: number(row.get(name)) for name in names} for row in answer["points"] if isinstance(row, dict)]
    rows = [row for row in rows if (row["batch"] or 0) > 0 and row[needed] is not None]
    if not rows:
        return None
    rows.sort(key=lambda row: row["batch"] or 0)
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
    """Take the linear model: its rows, its paths, and of its data the moments that give the loss everywhere."""
    if answer is None:
        return None
    names = ("batch", "epochs", "updates", "w", "w_spread", "b", "loss")
    rows = [{name: number(row.get(name)) for name in names} for row in answer["rows"] if isinstance(row, dict)]
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
    return {"rows": rows, "paths": paths, "moments": moments(complete)}


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
