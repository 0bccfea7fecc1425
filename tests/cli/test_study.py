"""``rueda study`` and ``rueda demo`` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import rueda, settle_in
from rueda.records import Run
from rueda.records.study import Study


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_in(tmp_path, monkeypatch)


def test_the_table_its_page_and_real_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "clouds.py", "--workers", "2", "--rows", "one-worker,naive", "--epochs", "1", "--confirm")
    assert rueda(*words) == 0
    shown = capsys.readouterr()
    assert "2 workers, rehearsed" in shown.out and "naive (real)" in shown.out and "images/s" in shown.out
    assert "2/2  " in shown.err and "test accuracy" in shown.err
    study = Study.load(Path("runs", "study-clouds-2"))
    assert [(row.name, row.workers, row.rehearsed) for row in study.rows] == [
        ("one-worker", 1, False), ("naive", 2, True), ("naive (real)", 2, False),
    ]  # fmt: skip
    virtual, real = study.rows[1:]
    assert virtual.test_accuracy == pytest.approx(real.test_accuracy, abs=0.02)  # 101 test examples
    assert Run(Path("runs", "study-clouds-2", real.runs[0])).environment()["rehearsed"] is False
    assert "naive" in Path("runs", "study-clouds-2", "report.html").read_text()
    # Again, as JSON: nothing is run.
    assert rueda(*words, "--json") == 0
    again = capsys.readouterr()
    assert json.loads(again.out)["rows"] == json.loads(study.to_json())["rows"] and again.err == ""


def test_gradient_descent(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("study", "linear", "--gd", "--seeds", "3", "--batches", "1,100") == 0
    assert "mean over 3 seeds" in capsys.readouterr().out
    assert json.loads(Path("runs", "study-linear", "gd.json").read_text())["seeds"] == 3


def test_throughput_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("study", "clouds.py", "--throughput", "--batches", "8,16", "--json") == 0
    assert [point["batch"] for point in json.loads(capsys.readouterr().out)["points"]] == [8, 16]
    words = ("--steps-to-target", "--target-accuracy", "0.6", "--batches", "8,32,96")
    assert rueda("study", "clouds.py", *words) == 0
    shown = capsys.readouterr()
    assert "critical batch" in shown.out and "batch 8:" in shown.err


MISTAKES = {
    "an unknown row": (["--rows", "naive,lamp"], "row lamp: recipe: expected a named recipe, got 'lamp'; did you mean"),
    "an empty row": (["--rows", "naive+"], "expected a named recipe, got ''"),
    "no seeds": (["--seeds", "0"], "seeds: expected 1 or more, got 0"),
    "no workers": (["--workers", "0"], "workers: expected 1 or more, got 0"),
    "two studies": (["--gd", "--throughput"], "ask for one at a time"),
    "gd of another task": (["--gd"], "run: rueda study linear --gd"),
    "batches of the table": (["--batches", "8"], "use --set batch=N"),
    "batches that are words": (["--throughput", "--batches", "8,many"], "whole numbers, by commas"),
    "a target in per cent": (["--steps-to-target", "--target-accuracy", "85"], "give e.g. 0.85"),
    "another task's folder": (["--folder", "other"], "holds a study of task glyphs-cnn"),
    "a damaged study": (["--folder", "broken"], "expected JSON"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Study(task="glyphs-cnn", workers=8, epochs=2).save(Path("other", "study.json"))
    Path("broken").mkdir()
    Path("broken", "study.json").write_text("{")
    assert rueda("study", "clouds.py", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("rueda: ") and message in error and len(error.splitlines()) == 1


def test_the_demo_in_small(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rueda.cli import demo

    monkeypatch.setattr(demo, "_TASK", "clouds.py")
    monkeypatch.setattr(demo, "_ROWS", ("one-worker", "naive"))
    assert rueda("demo", "--epochs", "1") == 0
    shown = capsys.readouterr().out
    assert "8 workers, nothing else changed:" in shown and "The best recipe, naive:" in shown
    assert Path("runs", "demo", "study.json").exists() and Path("runs", "demo", "report.html").exists()
