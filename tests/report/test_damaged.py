"""A number in a file may be anything: there is a page, or one line that says what is wrong, never another exception."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from report.samples import (
    curvature_member,
    forecast,
    landscape_member,
    plan,
    profile,
    write_json,
    write_others,
    write_run,
    write_study,
)
from rueda.errors import RuedaError
from rueda.records.curvature import Curvature
from rueda.records.landscape import Landscape
from rueda.report.collect import collect
from rueda.report.markdown import markdown_tables
from rueda.report.page import render

WRONG: tuple[Any, ...] = (None, math.nan, math.inf, -1, 0, 5e-324, 1.7e308, 10**400, "eight", [])
NOISE = {
    "kind": "noise", "epoch": 1, "step": 2, "seconds": 1.0, "examples": 64, "value": 100.0, "low": 50.0, "high": 400.0,
    "global_batch": 64, "group": None, "variance": 10.0, "square": 0.1, "steps": 2,
}  # fmt: skip


def others(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_others(folder / "all")
        (folder / "all" / name).rename(folder / name)
        for left in (folder / "all").iterdir():
            left.unlink()
        (folder / "all").rmdir()

    return write


def write_noisy(folder: Path) -> None:
    write_run(folder, epochs=2, steps=False)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(NOISE) + "\n")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(reversed(lines)) + "\n")  # the first row is the one that is damaged


KINDS: dict[str, Callable[[Path], Any]] = {
    "study.json": lambda folder: write_study(folder, seeds=0),
    "throughput.json": others("throughput.json"),
    "steps.json": others("steps.json"),
    "gd.json": others("gd.json"),
    "profile.json": lambda folder: profile().save(folder / "profile.json"),
    "plan.json": lambda folder: plan().save(folder / "plan.json"),
    "forecast.json": lambda folder: forecast().save(folder / "forecast.json"),
    "curvature.json": lambda folder: Curvature(
        task="t", members=(curvature_member("a", 0, 4.0), curvature_member("b", 0, 9.0))
    ).save(folder / "curvature.json"),
    "landscape.json": lambda folder: Landscape(task="t", members=(landscape_member("a"), landscape_member("b"))).save(
        folder / "landscape.json"
    ),
    "metrics.jsonl": write_noisy,
}


def numbers(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the place of each number; the first item of a list stands for all."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from numbers(part, (*place, name))
    elif isinstance(value, list):
        for part in value[:1]:
            yield from numbers(part, (*place, 0))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = changed(value[place[0]], place[1:], new)
    return copy


@pytest.mark.parametrize("name", KINDS)
def test_any_number_may_be_anything(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 MB of plotly and the page's scripts do not matter here.
    monkeypatch.setattr("rueda.report.page.packed_plotly", lambda: ("'sha256-x'", ""))
    monkeypatch.setattr("rueda.report.page.asset", lambda name: name)
    KINDS[name](tmp_path)
    file = tmp_path / name
    is_rows = name.endswith("l")
    whole = [json.loads(line) for line in file.read_text().splitlines()] if is_rows else json.loads(file.read_text())
    (section,) = collect([tmp_path])
    page = render([section])
    tried, shown = 0, 0
    for place in numbers(whole):
        for wrong in WRONG:
            damaged = changed(whole, place, wrong)
            if is_rows:
                file.write_text("".join(json.dumps(row) + "\n" for row in damaged))
            else:
                write_json(file, damaged)
            tried += 1
            try:
                found = render(collect([tmp_path])) + markdown_tables([tmp_path])
            except RuedaError as error:
                lines = str(error).splitlines()
            except Exception as error:  # what the test is for: say where it comes from
                raise AssertionError(f"{name}: {place} = {str(wrong)[:40]}: {error!r}") from error
            else:
                shown += 1
                lines = ["a page" if "nan %" not in found and "inf %" not in found else "not a number"]
            assert len(lines) == 1 and lines[0] != "not a number" and len(lines[0]) < 1000, (place, wrong)
    assert page and tried >= 3 * len(WRONG) and shown > 0
