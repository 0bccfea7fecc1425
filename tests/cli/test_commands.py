"""The commands as a user meets them: results, and one clear line for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rueda.records import Recipe

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


def test_train_one_and_two_workers(task_file: Path, tmp_path: Path) -> None:
    for workers in ("1", "2"):
        run = tmp_path / f"run-{workers}"
        done = rueda(
            "train", str(task_file), "--workers", workers, "--epochs", "2", "--set", "batch=12", "--run", str(run),
            "--tensorboard",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"run: {run}\n"
        lines = [line for line in done.stderr.splitlines() if line.startswith("epoch")]
        assert len(lines) == 2 and "images/s" in lines[1] and "test loss" in lines[1] and "accuracy" in lines[1]
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [row["global_batch"] for row in rows] == [12 * int(workers)] * 2
        assert sorted(file.name for file in run.iterdir()) == [
            "checkpoints", "environment.json", "metrics.jsonl", "recipe.toml", "tensorboard",
        ]  # fmt: skip
        events = list((run / "tensorboard").iterdir())
        assert len(events) == 1 and events[0].stat().st_size > 200


def test_json_resume_and_a_recipe_file(task_file: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("epochs = 1\nbatch = 24  # small enough\n")
    words = ("train", str(task_file), "--recipe", str(recipe), "--run", str(tmp_path / "run"), "--json")
    first = rueda(*words)
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    assert result["epoch"] == 1 and result["step"] == 10 and first.stderr == ""
    again = rueda(*words)
    assert again.returncode == 2 and "holds a run already; go on with --resume" in again.stderr
    more = rueda("train", str(task_file), "--run", str(tmp_path / "run"), "--resume", "--epochs", "3", "--json")
    assert more.returncode == 0, more.stderr
    assert json.loads(more.stdout)["step"] == 30
    assert "batch = 24 # small enough" in (tmp_path / "run" / "recipe.toml").read_text()


def test_a_recipe_from_a_pipe(task_file: Path, tmp_path: Path) -> None:
    """It can be read once only, though two workers need it."""
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "rueda", "train", str(task_file), "--recipe", "/dev/stdin", "--run", str(run)],
        input="workers = 2\nepochs = 1\nbatch = 20\n", env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recipe = Recipe.load(run / "recipe.toml")
    assert (recipe.workers, recipe.epochs, recipe.batch) == (2, 1, 20)


def test_recipes() -> None:
    listed = rueda("recipe", "list").stdout
    for name in (
        "one-worker", "naive", "batch-norm", "linear-scaling", "linear-warmup", "sqrt-scaling", "ghost-batch-norm",
        "gradient-noise", "longer-training", "batch-growth", "lars", "larc", "lamb", "novograd", "adascale",
    ):  # fmt: skip
        assert f"\n{name} " in f"\n{listed}"
    shown = rueda("recipe", "show", "linear-warmup", "--task", "cifar10-cnn", "--workers", "8").stdout
    assert 'scaling = "linear"' in shown and "workers = 8" in shown and "warmup_epochs = 3.0" in shown
    assert "momentum" in rueda("recipe", "fields").stdout


MISTAKES = {
    "an unknown task": (["train", "cifar"], "did you mean cifar10-"),
    "a missing file": (["train", "absent.py"], "a Python file that exists, got 'absent.py'"),
    "a file without a task": (["train", "empty.py"], "add `task = rueda.Task(...)`"),
    "a file that fails": (["train", "broken.py"], "broken.py, line 2, raised ZeroDivisionError"),
    "an unknown field": (["train", "linear", "--set", "bacth=3"], "did you mean batch?"),
    "a bad value": (["train", "linear", "--set", "batch=-3"], "batch: expected a positive number, got -3"),
    "no workers": (["train", "linear", "--workers", "0"], "workers: expected a positive number"),
    "a batch too large": (["train", "linear", "--set", "batch=101"], "batch"),
    "resume without a run": (["train", "linear", "--resume"], "--resume needs --run"),
    "a recipe that is not there": (["train", "linear", "--recipe", "no.toml"], "a recipe file"),
    "an unknown recipe": (["recipe", "show", "lambda"], "did you mean lamb?"),
    "a missing data set": (["data", "get", "imagenet"], "fashion-mnist, cifar-10"),
    "an unknown command": (["trian", "linear"], "No such command"),
    "an unknown option": (["train", "linear", "--epohcs", "3"], "--epo"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, since a start with torch costs seconds; the next test has a process of its own."""
    from rueda.cli import main

    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rueda", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in error
    if error.startswith("rueda: "):
        assert len(error.splitlines()) == 1


def test_a_mistake_inside_the_workers_is_one_line_too(tmp_path: Path) -> None:
    """What only a worker can find out (here: the data) reaches the user with its reason."""
    (tmp_path / "bad.py").write_text(
        "import rueda\nfrom torch import nn\n"
        "task = rueda.Task(name='bad', model=lambda: nn.Linear(1, 1), train=lambda: 3, test=lambda: 3)\n"
    )
    done = rueda("train", "bad.py", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "expected rueda.Arrays or a torch Dataset, got 'int'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    import rueda as package

    assert rueda("--version").stdout.strip() == package.__version__
    text = rueda("--help").stdout
    for command in ("run", "train", "recipe", "data", "demo"):
        assert command in text
