"""The records of the other studies: there and back, older files, the regimes, and damage refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from report.samples import write_others
from rueda.errors import RunError
from rueda.records.batch_curve import BatchCurve
from rueda.records.descent import GradientDescent, Points
from rueda.records.json_record import JsonRecord
from rueda.records.recipe.recipe import Recipe
from rueda.records.steps_to_target import StepsToTarget
from rueda.records.throughput import Throughput, ThroughputPoint, saturation

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDS: list[type[JsonRecord]] = [Throughput, StepsToTarget, GradientDescent]


@pytest.mark.parametrize("record", RECORDS)
def test_there_and_back(record: type[JsonRecord], tmp_path: Path) -> None:
    found = record.load(write_others(tmp_path))
    found.save(tmp_path / "again.json")
    assert record.load(tmp_path / "again.json") == found
    newer = {**json.loads(found.to_json()), "added_later": 3}  # a newer Rueda of the same format
    assert record.from_json(json.dumps(newer)) == found


def test_a_file_of_an_earlier_version() -> None:
    """Without the checksum of the task file, the data of the target, and what the fit says of each point."""
    stored = json.loads((RESULTS / "fashion-mnist-steps" / StepsToTarget.FILE).read_text())
    for name in ("task_file", "evaluated_on"):
        stored.pop(name, None)
    for point in stored["points"]:
        del point["in_fit"], point["regime"]
    for recipe, data in ((stored["recipe"], "validation"), (Recipe().to_toml(), "test")):
        found = StepsToTarget.from_json(json.dumps({**stored, "recipe": recipe}))
        assert found.data == data and found.task_file is None
    assert [point.batch for point in found.points] == [8, 16, 32, 64, 256]
    assert found.fit is not None
    critical = found.fit.critical_batch
    assert found.fit.boundaries == pytest.approx((critical / 9, 9 * critical))
    assert found.regime(critical / 10) == "perfect scaling" and found.regime(critical) == "diminishing returns"
    assert found.regime(10 * critical) == "maximal parallelism"
    written = json.loads(found.to_json())["points"][0]
    assert written["in_fit"] is True and written["regime"] == found.regime(8)


@pytest.mark.parametrize(
    ("batch", "regime"),
    [
        (16, "perfect scaling"),
        (44, "perfect scaling"),
        (45, "diminishing returns"),
        (3599, "diminishing returns"),
        (3600, "maximal parallelism"),
    ],
)
def test_regimes(batch: int, regime: str) -> None:
    curve = BatchCurve(smallest_updates=100.0, smallest_examples=4e4, critical_batch=400.0, interval=(300.0, 500.0))
    assert curve.regime(batch) == regime
    # What it means: twice the batch saves so many of the updates.
    saved = 1 - curve.updates(2 * batch) / curve.updates(batch)
    assert (saved >= 0.45 - 1e-9) == (regime == "perfect scaling")
    assert (saved <= 0.05 + 1e-9) == (regime == "maximal parallelism")


@pytest.mark.parametrize(
    ("speeds", "batch"),
    [
        ((10, 95, 99, 100), 2),
        ((10, 94.9, 99, 100), 4),
        ((10, 60, 100, 40), 4),
        ((100, 50), 1),
        # Where only the largest is fast enough, a still larger one may be faster.
        ((10, 20, 40, 80), None),
        ((10, 20, 94.9, 100), None),
        ((50,), None),
        ((), None),
    ],
)
def test_saturation(speeds: tuple[float, ...], batch: int | None) -> None:
    assert saturation({2**number: value for number, value in enumerate(speeds)}) == batch
    points = tuple(
        ThroughputPoint(batch=2**number, images_per_second=value, spread=0.0, milliseconds_per_update=1.0)
        for number, value in enumerate(speeds)
    )
    found = Throughput(task="t", points=points)
    assert found.saturates_at == batch == json.loads(found.to_json())["saturates_at"]


def test_the_moments_give_the_loss_of_every_line() -> None:
    data = Points(x=(0.0, 1.0, 4.0), y=(1.0, 2.0, 0.5))
    mean = data.moments()
    for w, b in ((0.0, 0.0), (10.0, 2.0), (20.0, -18.0)):
        direct = sum((w * x + b - y) ** 2 for x, y in zip(data.x, data.y, strict=True)) / 3
        form = w * w * mean["xx"] + b * b + 2 * w * b * mean["x"] - 2 * w * mean["xy"] - 2 * b * mean["y"] + mean["yy"]
        assert form == pytest.approx(direct, rel=1e-12)


DAMAGED: dict[str, tuple[type[JsonRecord], Any, str]] = {
    "no batch": (Throughput, {"points": [{"images_per_second": 3.0}]}, r"points\[0\]: expected batch, spread, mill"),
    "a text": (Throughput, {"points": "many"}, "points: expected a list, got 'many'"),
    "statistic": (Throughput, {"statistic": "mode"}, "throughput.statistic: expected best or median, got"),
    "target": (StepsToTarget, {"target_accuracy": 85}, "target_accuracy: expected a fraction, got 85"),
    "three ends": (StepsToTarget, {"fit.interval": [1, 2, 3]}, r"fit.interval: expected a list of 2, got \[1, 2, 3\]"),
    "wrong ends": (StepsToTarget, {"fit.interval": [3, 2]}, "fit.interval: expected two batch sizes, got"),
    "half a pair": (StepsToTarget, {"points.0.tried": [[0.1]]}, r"tried\[0\]: expected a list of 2, got \[0.1\]"),
    "negative": (StepsToTarget, {"fit.critical_batch": -1}, "critical_batch: expected a number, more than 0, got -1"),
    "lengths": (GradientDescent, {"data.x": [1.0]}, r"gd.data: expected x, y of one length, got \[1, 100\]"),
    "an empty path": (GradientDescent, {"paths.0.w": []}, r"gd.paths\[0\]: expected w, b, loss of one length"),
    "no number": (GradientDescent, {"data.x.3": None}, r"gd.data.x\[3\]: expected a number, got None"),
}


@pytest.mark.parametrize(("record", "changes", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_refused_in_one_line(
    record: type[JsonRecord], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = write_others(tmp_path) / record.FILE
    data = json.loads(file.read_text())
    for place, value in changes.items():
        *steps, last = (int(step) if step.isdigit() else step for step in place.split("."))
        inner = data
        for step in steps:
            inner = inner[step]
        inner[last] = value
    file.write_text(json.dumps(data))
    with pytest.raises(RunError, match=message) as error:
        record.load(file)
    assert len(str(error.value).splitlines()) == 1 and record.FILE in str(error.value)


def test_records_are_values() -> None:
    found = Throughput(task="t", points=())
    assert found.saturates_at is None and replace(found, task="u") != found
