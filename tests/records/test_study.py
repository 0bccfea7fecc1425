"""The study's file: JSON in and out, judged against one worker, refused when broken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

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
    "against_one_worker", "interval", "is_pooled", "verdict", "seeds_to_decide", "runs",
    "test_value", "test_value_spread", "train_value", "train_value_spread",
    "validation", "validation_spread", "others", "epochs_range", "updates_range",
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


SEEDS = {"seeds": (0, 1, 2), "test_accuracy_spread": 0.003}


@pytest.mark.parametrize(
    ("accuracy", "diverged", "points", "verdict"),
    [
        (0.95, 0, 5.0, "kept"),
        (0.896, 0, -0.4, "kept"),  # -0.4 ± 0.52 points
        (0.89, 0, -1.0, "undecided"),
        (0.886, 0, -1.4, "undecided"),
        (0.884, 0, -1.6, "lost"),
        (0.95, 1, 5.0, "diverged"),
        (None, 3, None, "diverged"),
    ],
)
def test_verdicts(accuracy: float | None, diverged: int, points: float | None, verdict: str) -> None:
    base = replace(ROW, **SEEDS)
    row = replace(base, name="lamb", workers=8, test_accuracy=accuracy, diverged=diverged)
    judged = study(base, row).judged().rows
    assert (judged[0].against_one_worker, judged[0].verdict) == (None, None)
    assert judged[1].verdict == verdict
    assert judged[1].against_one_worker == (None if points is None else pytest.approx(points))


@pytest.mark.parametrize(
    ("value", "tolerance", "change", "verdict"),
    [(2.01, 0.01, 0.5, "kept"), (2.02, 0.01, 1.0, "undecided"), (2.1, 0.01, 5.0, "lost"), (1.5, 0.01, -25.0, "kept")],
)
def test_verdicts_of_a_loss(value: float, tolerance: float, change: float, verdict: str) -> None:
    base = replace(ROW, test_accuracy=None, test_value=2.0, test_value_spread=0.001, seeds=(0, 1, 2))
    row = replace(base, name="lamb", workers=8, test_value=value, rehearsed=True)
    found = replace(study(base, row), metric=LOSS, tolerance=tolerance).judged()
    assert found.rows[1].against_one_worker == pytest.approx(change) and found.rows[1].verdict == verdict
    better = replace(row, name="b", test_value=0.9 * value)
    assert replace(found, rows=(*found.rows, better)).best() == better  # the lowest loss
    chosen = replace(better, validation=3.0)  # validation data decide, whatever the test data say
    assert replace(found, rows=(replace(row, validation=1.0), chosen)).best() != chosen


def test_one_seed_decides_nothing_unless_other_rows_show_a_spread() -> None:
    one = replace(ROW, name="lamb", workers=8, test_accuracy=0.5)
    (_, row) = study(ROW, one).judged().rows
    assert (row.verdict, row.interval, row.seeds_to_decide, row.is_pooled) == ("undecided", None, None, False)
    several = [replace(ROW, **SEEDS), replace(ROW, name="naive", workers=8, **SEEDS)]
    row = study(*several, one).judged().rows[-1]
    assert row.verdict == "lost" and row.is_pooled and row.interval is not None
    # ± t(0.95) sqrt(0.003^2 / 3 + 0.003^2) with (1/3 + 1)^2 / ((1/3)^2 / 2 + 1 / 4) degrees of freedom
    half = 100 * stats.t.ppf(0.95, (4 / 3) ** 2 / (1 / 18 + 1 / 4)) * 0.003 * (4 / 3) ** 0.5
    assert row.interval == pytest.approx((-40 - half, -40 + half), abs=1e-5)
    wild = replace(several[1], test_accuracy_spread=0.3)  # spreads that differ so much are not pooled
    assert study(several[0], wild, one).judged().rows[-1].interval is None


def test_an_older_file_is_judged_anew(tmp_path: Path) -> None:
    old = json.loads(study(ROW, replace(ROW, name="naive", workers=8, test_accuracy=0.5)).to_json())
    for row in old["rows"]:
        for name in ("interval", "is_pooled", "seeds_to_decide"):
            del row[name]
    old["rows"][1] |= {"verdict": "lost", "against_one_worker": -40.0}
    (tmp_path / "study.json").write_text(json.dumps(old))
    assert Study.load(tmp_path).rows[1].verdict == "undecided"  # one seed
    for row in old["rows"]:
        row |= {"seeds": [0, 1, 2], "test_accuracy_spread": 0.01}
    (tmp_path / "study.json").write_text(json.dumps(old))
    assert Study.load(tmp_path).rows[1].verdict == "lost"


def test_the_strongest_row_of_one_worker_is_chosen_on_validation_data() -> None:
    decayed = replace(ROW, name="one-worker+decay", test_accuracy=0.92)
    both = replace(ROW, name="one-worker+batch-norm", test_accuracy=0.91)
    found = study(ROW, decayed, both, replace(ROW, name="naive", workers=8, test_accuracy=0.99))
    assert found.strongest() == decayed
    chosen = [replace(row, validation=0.8 + row.test_accuracy * -0.1) for row in found.rows]  # type: ignore[operator]
    strongest = study(*chosen).strongest()
    assert strongest is not None and strongest.name == "one-worker"


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
    fast = replace(many, name="d", test_accuracy=0.6, epochs=ROW.epochs)
    longer = replace(many, name="e", test_accuracy=0.9, epochs=8 * ROW.epochs)
    naive = replace(many, name="naive", test_accuracy=0.95)
    found = study(ROW, fast, longer, naive).best()
    assert found is not None and found.name == "d"  # as many epochs as one worker, and a remedy
    repeated = replace(many, name="b (real)", rehearsed=False, seeds=(1000,))
    assert study(*rows, repeated).confirmed(rows[1]) == repeated
    assert study(*rows, real).confirmed(rows[1]) is None  # the same seed confirms nothing


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
