"""Throughput against batch: which batches, which is called saturated, what the file holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rueda.errors import RecipeError
from rueda.records.throughput import Throughput
from rueda.study import study_throughput, throughput
from tinytask import tiny_task


def test_an_update_of_several_batches_takes_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_updates", lambda training, seconds: 100.0)
    found = study_throughput(tiny_task(), batches=[8, 60], settings=["accumulate=4"], progress=False)
    assert [point.milliseconds_per_update for point in found.points] == [320.0, 2400.0]
    with pytest.raises(RecipeError, match="from 1 to 60, got 61"):  # four times 61 is more than the 240 examples
        study_throughput(tiny_task(), batches=[61], settings=["accumulate=4"], progress=False)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(throughput, "_updates", lambda training, seconds: 1000.0 * training.recipe.batch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm" if terminal else "dumb")
    study_throughput(tiny_task(), batches=[8, 16], rounds=2)
    shown = capsys.readouterr().err
    lines = [f"round {number} of 2: the fastest is batch 16 with 16,000 images/s" for number in (1, 2)]
    assert "measurements" in shown if terminal else shown.splitlines() == lines
    study_throughput(tiny_task(), batches=[8, 16], rounds=2, progress=False)
    assert capsys.readouterr().err == ""


def test_default_batches_and_file(tmp_path: Path) -> None:
    found = study_throughput(tiny_task(), seconds=0.01, rounds=2, folder=tmp_path)
    assert [point.batch for point in found.points] == [1, 2, 4, 8, 16]  # up to an eighth of 240
    assert all(point.images_per_second > 0 for point in found.points)
    data = json.loads((tmp_path / "throughput.json").read_text())
    assert data["kind"] == "throughput" and data["saturates_at"] == found.saturates_at
    assert Throughput.load(tmp_path) == found
    assert data["points"][0]["batch"] == 1 and data["environment"]["versions"]["torch"]


@pytest.mark.parametrize(
    ("batches", "message"), [([0], "from 1 to 240"), ([241], "from 1 to 240"), ([], "batches: expected one or more")]
)
def test_mistakes(batches: list[int], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        study_throughput(tiny_task(), batches=batches)
