"""Throughput against batch: which batches, which is called saturated, what the file holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rueda.errors import RecipeError
from rueda.records.profile import StepTime
from rueda.records.throughput import Throughput
from rueda.study import study_throughput, throughput
from tinytask import tiny_task


def step(batch: int, seconds: float = 0.5) -> StepTime:
    return StepTime(
        batch=batch, seconds=seconds, spread=0.1 * seconds, repeats=9, data=0.0, forward=0.125, backward=0.25,
        optimizer=0.125,
    )  # fmt: skip


def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes half a second, whatever its batch."""

    def measured(stepper: object, batches: Sequence[int], **options: Any) -> tuple[list[StepTime], None]:
        options["tell"]("a round")
        return [step(batch) for batch in batches], None

    monkeypatch.setattr(throughput, "measure_steps", measured)


def test_an_update_of_several_batches_steps_the_optimizer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    found = study_throughput(tiny_task(), batches=[8, 60], settings=["accumulate=4"], progress=False)
    assert [point.milliseconds_per_update for point in found.points] == [1625.0, 1625.0]  # 4 x 375 + 125
    assert found.points[0].images_per_second == pytest.approx(32 / 1.625)
    assert found.points[0].spread == pytest.approx(3.2 / 1.625)
    with pytest.raises(RecipeError, match="from 1 to 60, got 61"):  # four times 61 is more than the 240 examples
        study_throughput(tiny_task(), batches=[61], settings=["accumulate=4"], progress=False)


def test_the_recipes_own_batch_need_not_fit_the_data() -> None:
    settings = ["batch=256", "accumulate=2"]  # of 240 examples
    found = study_throughput(tiny_task(), batches=[1, 4], settings=settings, seconds=0.02, progress=False)
    assert [point.batch for point in found.points] == [1, 4]


def test_one_batch_has_the_speed_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    (point,) = study_throughput(tiny_task(), batches=[8], progress=False).points
    assert point.images_per_second == pytest.approx(step(8).images_per_second) and point.milliseconds_per_update == 500


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    timed(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm" if terminal else "dumb")
    study_throughput(tiny_task(), batches=[8, 16])
    shown = capsys.readouterr().err
    assert "0/1" in shown if terminal else shown.splitlines() == ["1/1 examples/s at local batch 8, 16"]
    study_throughput(tiny_task(), batches=[8, 16], progress=False)
    assert capsys.readouterr().err == ""


def test_default_batches_and_file(tmp_path: Path) -> None:
    found = study_throughput(tiny_task(), seconds=0.02, folder=tmp_path)
    assert [point.batch for point in found.points] == [1, 2, 4, 8, 16]  # up to an eighth of 240
    assert all(point.images_per_second > 0 for point in found.points)
    data = json.loads((tmp_path / "throughput.json").read_text())
    assert data["kind"] == "throughput" and data["saturates_at"] == found.saturates_at
    assert Throughput.load(tmp_path) == found and data["statistic"] == "median"
    assert data["points"][0]["batch"] == 1 and data["environment"]["versions"]["torch"]


@pytest.mark.parametrize(
    ("batches", "message"), [([0], "from 1 to 240"), ([241], "from 1 to 240"), ([], "batches: expected one or more")]
)
def test_mistakes(batches: list[int], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        study_throughput(tiny_task(), batches=batches)
