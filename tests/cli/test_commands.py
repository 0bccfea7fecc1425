"""The commands as a user meets them: results, and one clear line for a mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from commandline import hearing_ctrl_c, rueda_without_torch
from commandline import rueda as rueda_here
from rueda.records import Recipe
from rueda.world.signals import exit_status

TASK = """
import sys
sys.path.insert(0, {tests!r})
from tinytask import tiny_task
task = tiny_task()
"""


def rueda(*words: str, cwd: Path | None = None, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "rueda", *words], cwd=cwd, env=environ, text=True, capture_output=True, timeout=seconds
    )


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    file = tmp_path / "clouds.py"
    file.write_text(TASK.format(tests=str(Path(__file__).parents[1])))
    return file


def test_train_one_and_two_workers(task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of the two comes from a pipe, which can be read once only; their command loads no torch."""
    monkeypatch.chdir(tmp_path)
    for workers in ("1", "2"):
        run = tmp_path / f"run-{workers}"
        words = ("train", str(task_file), "--run", str(run), "--tensorboard")
        if workers == "1":
            done = rueda(*words, "--workers", "1", "--epochs", "2", "--set", "batch=12")
        else:
            recipe = "workers = 2\nepochs = 2\nbatch = 12\n"
            done = rueda_without_torch(*words, "--recipe", "/dev/stdin", input=recipe)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"run: {run}\nnext: rueda report {run}\n"
        # the warnings of two workers on one core, and on cores that others use more than half of the time
        busy = ("which they share", "is a straggler since", "keeps up with the others")
        title, headings, *epochs = (line for line in done.stderr.splitlines() if not any(one in line for one in busy))
        assert title == f"clouds on {workers} worker{'s' * (workers != '1')}"
        assert "examples/s" in headings and "test loss" in headings and "accuracy" in headings
        assert [line.split()[0] for line in epochs] == ["1/2", "2/2"]
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [row["global_batch"] for row in rows if "global_batch" in row] == [12 * int(workers)] * 2
        assert sorted(file.name for file in run.iterdir()) == [
            "checkpoints", "environment.json", "metrics.jsonl", "recipe.toml", "tensorboard",
        ]  # fmt: skip
        events = list((run / "tensorboard").iterdir())
        assert len(events) == 1 and events[0].stat().st_size > 200
        used = Recipe.load(run / "recipe.toml")
        assert (used.workers, used.epochs, used.batch) == (int(workers), 2, 12)


def test_json_resume_and_a_recipe_file(task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, since a start with torch costs seconds."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("epochs = 1\nbatch = 24  # small enough\n")
    words = ("train", str(task_file), "--recipe", str(recipe), "--run", str(tmp_path / "run"), "--json")
    assert rueda_here(*words) == 0
    first = capsys.readouterr()
    result = json.loads(first.out)
    assert result["epoch"] == 1 and result["step"] == 10 and first.err == ""
    assert rueda_here(*words) == 2
    assert "holds a run already; continue it with resume=True (--resume)" in capsys.readouterr().err
    more = ("train", str(task_file), "--run", str(tmp_path / "run"), "--resume", "--epochs", "3", "--json")
    assert rueda_here(*more) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 30
    assert "batch = 24 # small enough" in (tmp_path / "run" / "recipe.toml").read_text()


def test_recipes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert rueda_here("recipe", "list") == 0
    listed = capsys.readouterr().out
    for name in (
        "one-worker", "naive", "batch-norm", "linear-scaling", "linear-warmup", "sqrt-scaling", "ghost-batch-norm",
        "gradient-noise", "longer-training", "batch-growth", "lars", "larc", "lamb", "novograd", "adascale",
    ):  # fmt: skip
        assert f"\n{name} " in f"\n{listed}"
    assert rueda_here("recipe", "show", "linear-warmup", "--task", "cifar10-cnn", "--workers", "8") == 0
    shown = capsys.readouterr().out
    assert 'scaling = "linear"' in shown and "workers = 8" in shown and "warmup_epochs = 3.0" in shown
    assert rueda_here("recipe", "fields") == 0 and "momentum" in capsys.readouterr().out


MISTAKES = {
    "an unknown task": (["train", "cifar"], "did you mean cifar10-"),
    "a missing file": (["train", "absent.py"], "a Python file that exists, got 'absent.py'"),
    "a file without a task": (["train", "empty.py"], "add `task = rueda.Task(...)`"),
    "a file that fails": (["train", "broken.py"], "broken.py, line 2, raised ZeroDivisionError"),
    "an unknown field": (["train", "linear", "--set", "bacth=3"], "did you mean batch?"),
    "a bad value": (["train", "linear", "--set", "batch=-3"], "batch: expected a positive number, got -3"),
    "no workers": (["train", "linear", "--workers", "0"], "rueda: --workers: expected 1 or more, got 0"),
    "a batch too large": (["train", "linear", "--set", "batch=101"], "batch"),
    "resume without a run": (["train", "linear", "--resume"], "--resume needs --run"),
    "a recipe that is not there": (["train", "linear", "--recipe", "no.toml"], "a recipe file"),
    "an unknown recipe": (["recipe", "show", "lambda"], "did you mean lamb?"),
    "a missing data set": (["data", "get", "imagenet"], "fashion-mnist, cifar-10"),
    "an unknown command": (["trian", "linear"], "No such command"),
    "workers in words": (
        ["train", "linear", "-np", "two"],
        "rueda: --workers: expected a whole number, got 'two'; see",
    ),
    "no task": (["study"], "rueda: Missing argument 'task'; see rueda study --help"),
    "another library's name of a field": (["train", "linear", "--set", "lr=3"], "got 'lr'; did you mean rate?"),
    "a task file without its suffix": (["train", "empty"], "did you mean empty.py?"),
    "a profile that is not there": (["plan", "no.json"], "no.json: expected a profile, got: no such file; make one"),
    "a run that is not there": (["examine", "runs/none"], "a checkpoint file, got: no such file; check the path"),
    "an unknown option": (["train", "linear", "--epohcs", "3"], "--epo"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, since a start with torch costs seconds; the next test has a process of its own."""
    from rueda.cli import run_command

    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rueda", *words])
    with mock.patch.dict(os.environ):
        assert run_command() == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("rueda: ") and len(error.splitlines()) == 1


def test_a_mistake_inside_the_workers_is_one_line_too(tmp_path: Path) -> None:
    """What only a worker can find out (here: the data) reaches the user with its reason."""
    (tmp_path / "bad.py").write_text(
        "import rueda\nfrom torch import nn\n"
        "task = rueda.Task(name='bad', model=lambda: nn.Linear(1, 1), train=lambda: 3, test=lambda: 3)\n"
    )
    done = rueda("train", "bad.py", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "expected rueda.Arrays, a torch Dataset or a stream, got 'int'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    import rueda as package

    assert rueda("--version").stdout.strip() == package.__version__
    text = rueda("--help").stdout
    for command in ("run", "train", "recipe", "data", "demo"):
        assert command in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
def test_a_signal_before_the_command_begins(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While modules are imported; typer knows only Ctrl-C and makes status 130 of every signal."""

    def app(**_: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)  # has no effect yet
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            return 130
        return 0

    monkeypatch.setattr("rueda.cli.app.app", app)
    with hearing_ctrl_c():
        status = rueda_here("plan", "profile.json")
    assert (status, capsys.readouterr().err) == (exit_status(number), f"rueda: stopped by {number.name}\n")


def test_a_warning_is_one_line() -> None:
    code = (
        "import warnings; from rueda.cli import app, main; app.app = lambda **_: warnings.warn('it is skipped'); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120)
    assert done.stderr == "warning: it is skipped\n"
