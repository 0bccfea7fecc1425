"""The study's file: JSON in and out, judged against one worker, refused when broken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rueda.errors import RunError
from rueda.records.metric import LOSS
from rueda.records.study import Study, StudyRow, mean_and_spread

ROW = StudyRow(
    name="one-worker", summary="the base", workers=1, global_batch=64, epochs=3, updates=561, test_accuracy=0.9,
    seconds=4.0, images_per_second=9000.0, rehearsed=False, seeds=(0,), runs=("runs/one-worker-seed0",),
)  # fmt: skip
NAMES = {
    "name", "summary", "workers", "global_batch", "epochs", "updates", "test_accuracy", "test_accuracy_spread",
    "train_accuracy", "train_accuracy_spread", "seconds", "images_per_second", "rehearsed", "seeds", "diverged",
    "against_one_worker", "verdict", "runs", "test_value", "test_value_spread", "train_value", "train_value_spread",
    "validation", "validation_spread", "others",
}  # fmt: skip


def study(*rows: StudyRow) -> Study:
    return Study(task="glyphs-cnn", workers=8, epochs=3, command="rueda study", environment={"commit": "x"}, rows=rows)


def test_there_and_back(tmp_path: Path) -> None:
    before = study(ROW, replace(ROW, name="naive", workers=8, test_accuracy=None, seconds=float("nan"))).judged()
    before.save(tmp_path / "study.json")
    data = json.loads((tmp_path / "study.json").read_text())
    about = {"task", "workers", "epochs", "command", "commands", "recipe", "task_file", "environment"}
    about |= {"metric", "tolerance", "unit"}
    assert {"format", "kind", "rows", *about} == set(data)
    assert data["format"] == 1 and data["kind"] == "techniques" and set(data["rows"][0]) == NAMES
    assert data["rows"][1]["seconds"] is None  # strict JSON has no NaN
    whole = study(ROW).judged()
    whole.save(tmp_path / "study.json")
    assert Study.load(tmp_path) == Study.load(tmp_path / "study.json") == whole


@pytest.mark.parametrize(
    ("accuracy", "diverged", "points", "verdict"),
    [
        (0.95, 0, 5.0, "kept"),
        (0.89, 0, -1.0, "kept"),
        (0.889, 0, -1.1, "lost"),
        (0.95, 1, 5.0, "diverged"),
        (None, 3, None, "diverged"),
    ],
)
def test_verdicts(accuracy: float | None, diverged: int, points: float | None, verdict: str) -> None:
    row = replace(ROW, name="lamb", workers=8, test_accuracy=accuracy, diverged=diverged)
    judged = study(ROW, row).judged().rows
    assert (judged[0].against_one_worker, judged[0].verdict) == (None, None)
    assert judged[1].verdict == verdict
    assert judged[1].against_one_worker == (None if points is None else pytest.approx(points))


@pytest.mark.parametrize(
    ("value", "tolerance", "change", "verdict"),
    [(2.02, 0.01, 1.0, "kept"), (2.1, 0.01, 5.0, "lost"), (2.1, 0.05, 5.0, "kept"), (1.5, 0.01, -25.0, "kept")],
)
def test_verdicts_of_a_loss(value: float, tolerance: float, change: float, verdict: str) -> None:
    base = replace(ROW, test_accuracy=None, test_value=2.0)
    row = replace(base, name="lamb", workers=8, test_value=value, rehearsed=True)
    found = replace(study(base, row), metric=LOSS, tolerance=tolerance).judged()
    assert found.rows[1].against_one_worker == pytest.approx(change) and found.rows[1].verdict == verdict
    better = replace(row, name="b", test_value=0.9 * value)
    assert replace(found, rows=(*found.rows, better)).best() == better  # the lowest loss
    chosen = replace(better, validation=3.0)  # validation data decide, whatever the test data say
    assert replace(found, rows=(replace(row, validation=1.0), chosen)).best() != chosen


def test_without_one_worker_there_is_no_verdict() -> None:
    assert study(replace(ROW, name="naive", workers=8)).judged().rows[0].verdict is None


def test_the_best_row() -> None:
    many = replace(ROW, workers=8, rehearsed=True)
    rows = [replace(many, name=name, test_accuracy=value) for name, value in (("a", 0.7), ("b", 0.8))]
    wild = replace(many, name="c", test_accuracy=0.9, diverged=1)
    real = replace(many, name="b (real)", test_accuracy=0.85, rehearsed=False)  # confirmed already
    best = study(ROW, *rows, wild, real).best()
    assert best is not None and best.name == "b"
    assert study(ROW).best() is None


def test_mean_and_sample_deviation() -> None:
    mean, spread = mean_and_spread([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3) and spread == pytest.approx((7 / 3) ** 0.5)  # ((16 + 1 + 25) / 9) / 2 = 7 / 3


BROKEN = {
    "half a file": ('{"format": 1, "rows"', "expected JSON"),
    "a list": ("[]", r"expected a study \(kind 'techniques'\), got"),
    "another kind": ('{"format": 1, "kind": "throughput", "rows": []}', r"expected a study \(kind 'techniques'\), got"),
    "a later format": ('{"format": 2, "kind": "techniques", "rows": []}', "expected format 1, got 2"),
    "no task": ('{"format": 1, "kind": "techniques", "rows": []}', "task"),
    "a row of text": (
        '{"format":1,"kind":"techniques","task":"x","workers":8,"epochs":1,"rows":["y"]}',
        "expected an object, got",
    ),
    "a row without figures": (
        '{"format":1,"kind":"techniques","task":"x","workers":8,"epochs":1,"rows":[{"name":"y"}]}',
        "missing",
    ),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(text)
    with pytest.raises(RunError, match=message) as error:
        Study.load(file)
    assert len(str(error.value).splitlines()) == 1 and "study.json" in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="make one with `rueda study`"):
        Study.load(tmp_path)
