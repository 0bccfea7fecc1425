"""``rueda forecast`` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commandline import rueda, rueda_without_torch, settle_in
from jobshere import run_jobs_here
from rueda.records.forecast import CurvePoint, Forecast
from rueda.records.profile import Profile, StepTime


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_in(tmp_path, monkeypatch)


def curve() -> Forecast:
    """Give a curve that lies on 3 m^-0.35 + 0.04."""
    points = [
        CurvePoint(examples=size, passes=10.0, updates=99, errors=(error - 0.001, error, error + 0.001),
                   seeds=(0, 1, 2), images_per_second=1000.0)
        for size in (500, 1000, 2000, 4000, 8000, 16000)
        for error in [3.0 * size**-0.35 + 0.04]
    ]  # fmt: skip
    whole = CurvePoint(examples=64_000, passes=5.0, updates=9, errors=(3.0 * 64_000**-0.35 + 0.04,))
    return Forecast(
        task="clouds", examples=64_000, test_examples=50_000, chance=0.9, batch=50, epochs=5, growth=0.5, recipe="",
        points=tuple(points), whole=whole,
    )  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the curve above for measured."""
    monkeypatch.setattr("rueda.study.learning_curve.measure_learning_curve", lambda *words, **more: curve())


def save_profile(task: str = "clouds") -> None:
    steps = [
        StepTime(batch=batch, seconds=batch / 2000, spread=0.0, repeats=5, data=0.0, forward=batch / 6000,
                 backward=batch / 3000, optimizer=0.0)
        for batch in (1, 50, 100)
    ]  # fmt: skip
    profile = Profile(task=task, device="cpu", threads=1, precision="float32", parameters=1000, gradient_bytes=4000,
                      examples=64_000, recipe="", steps=tuple(steps))  # fmt: skip
    profile.save(Path("profile.json"))


def test_trainings_in_processes_then_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("forecast", "clouds.py", "--target-error", "0.2", "--sizes", "40,160", "--seeds", "1")
    shown = rueda_without_torch(*words, "--epochs", "1")
    assert "2/2  " in shown.stderr and "examples, seed 0: test accuracy" in shown.stderr
    assert shown.returncode == 0 and "zone" in shown.stdout and "160" in shown.stdout
    found = Forecast.load(Path("runs", "forecast-clouds"))
    assert [point.examples for point in found.points] == [40, 160] and found.target_error == 0.2
    assert (
        found.need is None
        and "No forecast: too few sizes for a law: 2 better than chance, 4 are needed" in shown.stdout
    )
    assert "Trainings on growing subsets" in Path("runs", "forecast-clouds", "report.html").read_text()
    # Again, as JSON and for another target: nothing is run.
    assert rueda(*words[:3], "0.3", *words[4:], "--epochs", "1", "--json") == 0
    again = capsys.readouterr()
    assert json.loads(again.out)["points"] == json.loads(found.to_json())["points"] and again.err == ""


def test_the_answer_and_its_page(measured: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("forecast", "clouds.py", "--target-error", "0.1", "--folder", "out") == 0
    shown = capsys.readouterr().out
    assert "A test error of 0.1 needs about 71," in shown  # (0.06 / 3)^(-1 / 0.35) = 71,500
    assert "5 epochs" not in shown and "updates of batch 50" in shown and "inside the interval" in shown
    page = Path("out", "report.html").read_text()
    assert "A test error of 0.1 needs about" in page and "the whole set, not fitted" in page


def test_the_time_on_a_cluster(measured: None, capsys: pytest.CaptureFixture[str]) -> None:
    save_profile()
    words = ("forecast", "clouds.py", "--target-error", "0.1", "--folder", "out", "--profile", "profile.json")
    assert rueda(*words) == 0
    assert "On 1 worker of this-machine, batch 50 each (2,000 images/s)" in capsys.readouterr().out
    on, need = Forecast.load("out").cluster, Forecast.load("out").need
    assert on is not None and need is not None
    assert on.hours.value == pytest.approx(need.processed / 2000 / 3600, rel=1e-6)
    assert on.hours.low < on.hours.value < (on.hours.high or 1e9)
    assert rueda(*words, "--cluster", "dgx-h100", "--workers", "8") == 0
    shown = capsys.readouterr().out
    assert "On 8 workers of dgx-h100" in shown and "a global batch of 400 may need more" in shown


def test_no_time_without_an_answer(measured: None, capsys: pytest.CaptureFixture[str]) -> None:
    save_profile("glyphs-cnn")
    words = ("forecast", "clouds.py", "--target-error", "0.01", "--folder", "out", "--profile", "profile.json")
    assert rueda(*words) == 0
    shown = capsys.readouterr().out
    assert "No forecast: target 0.01 is below the irreducible error" in shown and "On 1 worker" not in shown
    assert "the profile is of task glyphs-cnn, not of clouds" in shown


MISTAKES = {
    "a target in per cent": (["--target-error", "5"], "--target-error: expected a fraction between 0 and 1, got 5.0"),
    "a target of nothing": (["--target-error", "0"], "--target-error: expected a fraction"),
    "sizes that are words": (["--target-error", ".1", "--sizes", "10,many"], "--sizes: expected whole numbers"),
    "a size too large": (["--target-error", ".1", "--sizes", "10,9999"], "size: expected from 1 to 240"),
    "two ways to choose sizes": (
        ["--target-error", ".1", "--sizes", "10,20", "--largest-fraction", "0.5"],
        "--sizes and --largest-fraction both choose the sizes of the subsets",
    ),
    "a target accuracy": (
        ["--target-error", ".1", "--set", "target_accuracy=.9"],
        "--set target_accuracy has no effect",
    ),
    "no seeds": (["--target-error", ".1", "--seeds", "0"], "seeds: expected 1 or more, got 0"),
    "a setting that is none": (["--target-error", ".1", "--set", "rte=1"], "did you mean rate?"),
    "a cluster alone": (["--target-error", ".1", "--cluster", "dgx-h100"], "--cluster needs the task's speed"),
    "no profile there": (["--target-error", ".1", "--profile", "none.json"], "none.json: expected a profile"),
    "a broken profile": (["--target-error", ".1", "--profile", "broken.json"], "broken.json: expected JSON"),
    "no such cluster": (["--target-error", ".1", "--profile", "profile.json", "--cluster", "dgx"], "cluster"),
    "no batch": (["--target-error", ".1", "--profile", "profile.json", "--local-batch", "0"], "batch"),
    "no workers": (["--target-error", ".1", "--profile", "profile.json", "--workers", "0"], "workers: expected 1"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_jobs_here(monkeypatch)
    save_profile()
    Path("broken.json").write_text("{")
    assert rueda("forecast", "clouds.py", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("rueda: ") and message in error and len(error.splitlines()) == 1


def test_a_task_without_a_metric_is_forecast_by_its_loss(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_jobs_here(monkeypatch)
    sizes = ["--sizes", "20,40,60,80", "--seeds", "1", "--epochs", "2", "--folder", "lines"]
    assert rueda("forecast", "linear", "--target", "120", *sizes) == 0
    shown = capsys.readouterr().out
    assert "linear: test loss after the last epoch" in shown and "test error" not in shown
    page = Path("lines", "report.html").read_text()
    assert "Test loss against training examples" in page and Forecast.load("lines").unit == "examples"


def test_a_hostile_name_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = replace(curve(), task="</script><script>alert(1)</script>")
    monkeypatch.setattr("rueda.study.learning_curve.measure_learning_curve", lambda *words, **more: evil)
    assert rueda("forecast", "clouds.py", "--target-error", "0.1", "--folder", "out") == 0
    assert "<script>alert(1)" not in Path("out", "report.html").read_text()
