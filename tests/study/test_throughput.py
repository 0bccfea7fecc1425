"""Throughput against batch: which batches, which is called saturated, what the file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rueda.errors import RecipeError
from rueda.study import study_throughput
from rueda.study.throughput import Speed, saturation
from tinytask import tiny_task


def speed(batch: int, images_per_second: float) -> Speed:
    return Speed(batch=batch, images_per_second=images_per_second, spread=0.0, milliseconds_per_update=1.0)


@pytest.mark.parametrize(
    ("speeds", "batch"), [((10, 20, 40, 80), 8), ((10, 95, 99, 100), 2), ((10, 94.9, 99, 100), 4), ((50,), 1)]
)
def test_saturation(speeds: tuple[float, ...], batch: int) -> None:
    assert saturation([speed(2**number, value) for number, value in enumerate(speeds)]) == batch


def test_default_batches_and_file(tmp_path: Path) -> None:
    found = study_throughput(tiny_task(), seconds=0.01, rounds=2, folder=tmp_path)
    assert [point.batch for point in found.points] == [1, 2, 4, 8, 16]  # up to an eighth of 240
    assert all(point.images_per_second > 0 for point in found.points)
    data = json.loads((tmp_path / "throughput.json").read_text())
    assert data["kind"] == "throughput" and data["saturates_at"] == found.saturates_at
    assert data["points"][0]["batch"] == 1 and data["environment"]["versions"]["torch"]


@pytest.mark.parametrize("batch", [0, 241])
def test_mistakes(batch: int) -> None:
    with pytest.raises(RecipeError, match="from 1 to 240"):
        study_throughput(tiny_task(), batches=[batch])
