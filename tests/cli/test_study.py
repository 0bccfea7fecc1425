"""``rueda study``, ``throughput``, ``steps-to-target``, ``gradient-descent`` and ``demo`` as a user meets them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from commandline import rueda, rueda_without_torch, settle_in
from jobshere import run_jobs_here
from rueda.errors import RunError
from rueda.jobs import Stopped
from rueda.records import Run
from rueda.records.profile import StepTime
from rueda.records.study import Study, StudyRow, control_of
from rueda.study.steps_to_target import Reached
from rueda.study.techniques import RunsFailed


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_in(tmp_path, monkeypatch)


def test_the_table_its_page_and_real_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "clouds.py", "--workers", "2", "--rows", "one-worker,naive", "--epochs", "1", "--confirm")
    shown = rueda_without_torch(*words)
    assert shown.returncode == 0, shown.stderr
    assert "2 workers, rehearsed" in shown.stdout and "naive (real)" in shown.stdout and "examples/s" in shown.stdout
    assert "2/2  " in shown.stderr and "test accuracy" in shown.stderr
    study = Study.load(Path("runs", "study-clouds-2"))
    assert [(row.name, row.workers, row.rehearsed) for row in study.rows] == [
        ("one-worker", 1, False), ("naive", 2, True), ("naive (real)", 2, False),
    ]  # fmt: skip
    virtual, real = study.rows[1:]
    assert (virtual.seeds, real.seeds) == ((0,), (1000,))  # which did not choose the row
    assert study.confirmed(virtual) == real and real.verdict == "undecided" and "(one seed)" in shown.stdout
    assert virtual.test_accuracy == pytest.approx(real.test_accuracy, abs=0.1)  # another seed, 101 test examples
    assert Run(Path("runs", "study-clouds-2", real.runs[0])).environment()["rehearsed"] is False
    assert "naive" in Path("runs", "study-clouds-2", "report.html").read_text()
    command = shown.stdout.splitlines()[-1]
    assert command.startswith("next: rueda examine runs/study-clouds-2/runs/one-worker-seed0 ")
    assert rueda(*command.split()[2:]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert command.startswith("next: rueda report ") and rueda(*command.split()[2:]) == 0
    assert capsys.readouterr().out == "page: report.html\n"
    # Again, as JSON: nothing is run.
    assert rueda(*words, "--json") == 0
    again = capsys.readouterr()
    assert json.loads(again.out)["rows"] == json.loads(study.to_json())["rows"] and again.err == ""


def test_gradient_descent(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("gradient-descent", "--seeds", "3", "--batches", "1,100") == 0
    assert "mean over 3 seeds" in capsys.readouterr().out
    assert json.loads(Path("runs", "study-linear", "gd.json").read_text())["seeds"] == 3


def test_throughput_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("throughput", "clouds.py", "--batches", "8,16", "--json") == 0
    assert [point["batch"] for point in json.loads(capsys.readouterr().out)["points"]] == [8, 16]
    words = ("--target-accuracy", "0.6", "--batches", "8,32,96")
    assert rueda("steps-to-target", "clouds.py", *words) == 0
    shown = capsys.readouterr()
    assert "critical batch" in shown.out and "batch 8:" in shown.err


@pytest.mark.parametrize("command", ["throughput", "steps-to-target"])
def test_a_task_file_that_changes_the_directory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The results lie where the command was typed, and the file that is compared is the one that was typed."""
    (tmp_path / "elsewhere").mkdir()
    text = Path("clouds.py").read_text() + f"import os\nos.chdir({str(tmp_path / 'elsewhere')!r})\n"
    Path("leaves.py").write_text(text)
    monkeypatch.setattr("rueda.study.steps_to_target.updates_to_target", lambda *_: Reached(9.0, 36.0))
    file = tmp_path / "runs" / "study-leaves" / ("steps.json" if "steps" in command else "throughput.json")
    assert rueda(command, "leaves.py", "--batches", "4") == 0
    assert f"study: {file}" in capsys.readouterr().out and file.is_file()
    assert file.with_name("report.html").is_file() and not list((tmp_path / "elsewhere").iterdir())
    if command == "steps-to-target":
        monkeypatch.chdir(tmp_path)
        Path("leaves.py").write_text(f"{text}# changed\n")
        assert rueda(command, "leaves.py", "--batches", "4") == 2
        assert "made with another task file" in capsys.readouterr().err


def test_a_batch_that_is_not_saturated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        StepTime(batch=batch, seconds=0.01, spread=0.0, repeats=1, data=0.0, forward=0.0, backward=0.0, optimizer=0.0)
        for batch in (8, 16)
    ]
    monkeypatch.setattr("rueda.study.throughput.measure_steps", lambda *given, **options: (steps, None))
    assert rueda("throughput", "clouds.py", "--batches", "8,16") == 0
    shown = capsys.readouterr()
    assert "not saturated up to batch 16" in shown.out and "1/1 examples/s at local batch 8, 16" in shown.err


def test_seeds_that_do_not_reach_the_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "rueda.study.steps_to_target.updates_to_target",
        lambda task, recipe, *_: Reached(45.0, 45.0 * recipe.batch) if recipe.seed <= 1 else None,
    )
    assert rueda("steps-to-target", "clouds.py", "--seeds", "4", "--batches", "8,16,32") == 0
    shown = capsys.readouterr().out
    assert shown.count("45 (1 of 4 seeds)") == 3 and "with every seed: no curve" in shown


ROW = StudyRow(
    name="naive", summary="", workers=2, global_batch=48, epochs=1, updates=5, test_accuracy=0.5, seconds=1.0,
    images_per_second=240.0, rehearsed=True, seeds=(0,),
)  # fmt: skip


def test_the_table_is_shown_though_a_run_or_the_page_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study(task="clouds", workers=2, epochs=1, rows=(ROW,))
    study.save(Path("there", "study.json"))

    def failing(*arguments: object, **options: object) -> Study:
        raise RunsFailed("1 of 2 runs failed (lamb, seed 0: gone); try again", study)

    monkeypatch.setattr("rueda.study.techniques.study_techniques", failing)
    assert rueda("study", "clouds.py", "--folder", "there") == 2
    shown = capsys.readouterr()
    assert "naive" in shown.out and "page: there/report.html" in shown.out and Path("there", "report.html").exists()
    assert shown.err == "rueda: 1 of 2 runs failed (lamb, seed 0: gone); try again\n"

    def full(*arguments: object) -> Path:
        raise RunError("cannot write report.html: No space left on device")

    monkeypatch.setattr("rueda.study.techniques.study_techniques", lambda *arguments, **options: study)
    monkeypatch.setattr("rueda.report.write_report", full)
    for words in ((), ("--json",)):
        assert rueda("study", "clouds.py", "--folder", "there", *words) == 2
        shown = capsys.readouterr()
        assert "naive" in shown.out and "page:" not in shown.out and "No space left" in shown.err


@pytest.mark.parametrize(
    ("stop", "status"), [(KeyboardInterrupt(), 130), (Stopped(signal.SIGINT), 130), (Stopped(signal.SIGTERM), 143)]
)
def test_stopped_by_a_signal(
    stop: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*arguments: object, **options: object) -> Study:
        raise stop

    monkeypatch.setattr("rueda.study.techniques.study_techniques", stopped)
    assert rueda("study", "clouds.py") == status  # as `rueda train`: 128 + signal
    assert capsys.readouterr().err == "stopped; run the same command again to resume\n"


MISTAKES = {
    "one worker": ("study clouds.py --workers 1", "workers: expected 2 or more, got 1; or name the rows to train on"),
    "one worker to confirm": ("study clouds.py --workers 1 --confirm", "got 1 worker; leave it out"),
    "no rows": ("study clouds.py --rows ,", "rows: expected a named recipe or more, got []"),
    "an unknown row": (
        "study clouds.py --rows naive,lamp",
        "row lamp: recipe: expected a named recipe, got 'lamp'; did you mean",
    ),
    "an empty row": ("study clouds.py --rows naive+", "expected a named recipe, got ''"),
    "no seeds": ("study clouds.py --seeds 0", "seeds: expected 1 or more, got 0"),
    "no workers": ("study clouds.py --workers 0", "workers: expected 1 or more, got 0"),
    "another task's folder": ("study clouds.py --folder other", "holds a study of task glyphs-cnn"),
    "a damaged study": (
        "study clouds.py --folder broken",
        "; remove it: the runs are kept, and the same command writes it again",
    ),
    "no batches": ("steps-to-target clouds.py --batches ,", "whole numbers, separated by commas, got ','"),
    "no epochs to a target": ("steps-to-target clouds.py --batches 8 --epochs 0", "epochs: expected 1 or more, got 0"),
    "a target in per cent": ("steps-to-target clouds.py --target-accuracy 85", "give e.g. 0.85"),
    "batches that are words": ("throughput clouds.py --batches 8,many", "whole numbers, separated by commas"),
    "no seeds of descent": ("gradient-descent --seeds 0", "seeds: expected 1 or more, got 0"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_jobs_here(monkeypatch)
    Study(task="glyphs-cnn", workers=8, epochs=2).save(Path("other", "study.json"))
    Path("broken").mkdir()
    Path("broken", "study.json").write_text("{")
    assert rueda(*words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("rueda: ") and message in error and len(error.splitlines()) == 1


def test_the_demo_in_small(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rueda.cli import demo

    run_jobs_here(monkeypatch)
    monkeypatch.setattr(demo, "TASK", "clouds.py")
    monkeypatch.setattr(demo, "ROWS", ("one-worker", "naive"))
    assert rueda("demo", "--epochs", "1", "--seeds", "1") == 0
    shown = capsys.readouterr().out
    assert "of 8 workers with nothing else changed:" in shown and "The fair control" in shown
    assert Path("runs", "demo", "study.json").exists() and Path("runs", "demo", "report.html").exists()


def test_the_demo_is_the_tasks_own_recipe_with_its_control() -> None:
    """Nothing is set for the demonstration, and every remedy has one worker with the same remedy beside it."""
    from rueda.cli.demo import ROWS, TASK, WORKERS, summary

    def row(name: str, accuracy: float, spread: float) -> StudyRow:
        return StudyRow(
            name=name, summary="", workers=1 if "one-worker" in name else WORKERS, global_batch=64, epochs=4,
            updates=10, test_accuracy=accuracy, test_accuracy_spread=spread, seconds=1.0, images_per_second=1.0,
            rehearsed="one-worker" not in name, seeds=(0, 1),
        )  # fmt: skip

    assert {"one-worker", "naive"} | {control for name in ROWS if (control := control_of(name))} <= set(ROWS)
    study = Study(task=TASK, workers=WORKERS, epochs=4, rows=tuple(row(name, 0.91, 0.012) for name in ROWS))
    words = summary(study).replace("\N{NO-BREAK SPACE}", " ")
    assert "controls, one worker with batch norm: 91.0 ± 1.2 %; with a decaying rate: 91.0" in words
    assert "batch-norm+batch-growth 91.0" in words
