"""``rueda train`` as a user meets it: where a run is put, and what is said of one that diverged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commandline import environ, hearing_ctrl_c, rueda, settle_in
from rueda.records import Run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    settle_in(tmp_path / "here", monkeypatch)


def test_a_name_leads_out_of_no_folder(tmp_path: Path) -> None:
    text = Path("clouds.py").read_text()
    Path("evil.py").write_text(
        text + "from dataclasses import replace\ntask = replace(task, name='../../../evil/[bold]x')\n"
    )
    assert rueda("train", "evil.py", "--epochs", "1", "--json") == 0
    assert [one.name for one in tmp_path.iterdir()] == ["here"]
    assert [one.name.rsplit("-", 2)[0] for one in Path("runs").iterdir()] == ["evil-bold-x"]


def test_a_diverged_run_says_which_checkpoint_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    advice = "lower the learning rate, warm up, or clip the gradients"
    told = f"diverged after update 1: nan or inf in 0.weight and 3 more: {advice}; no checkpoint was written before\n"
    assert rueda("train", "clouds.py", "--set", "rate=1e39", "--epochs", "1") == 3
    assert capsys.readouterr().err.endswith(told)
    words = ("train", "clouds.py", "--run", "runs/x")
    assert rueda(*words, "--epochs", "1", "--json") == 0
    (whole,) = Path("runs/x/checkpoints").glob("step-*.pt")
    capsys.readouterr()
    assert rueda(*words, "--epochs", "3", "--set", "rate=1e39", "--resume", "--json") == 3
    told = f"diverged after update 11: nan or inf in 0.weight and 3 more: {advice}; "
    assert capsys.readouterr().err == f"{told}{whole} is whole and finite: --resume continues from it\n"
    assert rueda(*words, "--epochs", "3", "--set", "rate=0.1", "--resume", "--json") == 0
    assert [row.diverged for row in Run(Path("runs/x")).rows("epoch")] == [False] * 3


def test_an_empty_name_and_a_recipe_of_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the current folder nor a recipe that lies in it becomes a run's."""
    assert rueda("train", "clouds.py", "--run", "", "--epochs", "1") == 2
    assert "--run: expected the name of a folder, got ''" in capsys.readouterr().err
    mine = "batch = 12  # my own\n"
    Path("recipe.toml").write_text(mine)
    for words in ((), ("--resume",)):
        assert rueda("train", "clouds.py", "--recipe", "recipe.toml", "--run", ".", "--epochs", "1", *words) == 2
        told = "recipe.toml was not written by a run, and a run here would overwrite it; choose another folder"
        assert told in " ".join(capsys.readouterr().err.split())
    files = {one.name for one in Path().iterdir()} - {"__pycache__"}  # that of the task file
    assert Path("recipe.toml").read_text() == mine and files == {"clouds.py", "recipe.toml"}


def test_a_rehearsed_run_is_resumed_as_a_rehearsal(capsys: pytest.CaptureFixture[str]) -> None:
    """And never on as many real workers as it had."""
    words = ("train", "clouds.py", "--run", "runs/x", "--workers", "64", "--set", "batch=1")
    assert rueda(*words, "--epochs", "1", "--rehearse") == 0
    assert rueda("train", "--run", "runs/x", "--epochs", "2", "--resume") == 0
    assert "clouds on 64 rehearsed workers in one process, resuming at epoch 2, step 3\n" in capsys.readouterr().err
    assert all(row.rehearsed for row in Run(Path("runs/x")).rows("epoch"))


def test_resume_from(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "clouds.py", "--run", "runs/x", "--json")
    assert rueda(*words, "--epochs", "3", "--set", "keep=5") == 0
    assert rueda(*words, "--epochs", "3", "--resume-from", "10", "--set", "rate=0.02") == 0
    assert [(row.step, row.rate) for row in Run(Path("runs/x")).rows("epoch")] == [(10, 0.1), (20, 0.02), (30, 0.02)]
    capsys.readouterr()
    assert rueda(*words, "--epochs", "3", "--resume-from", "15") == 2
    told = "expected last, best or the step of a checkpoint (10, 20, 30), got '15'; choose one of them"
    assert told in " ".join(capsys.readouterr().err.split())


def test_another_optimizer_trains_at_its_own_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("train", "clouds.py", "--set", "optimizer=lamb", "--epochs", "1", "--run", "runs/x") == 0
    note = "optimizer lamb: learning rate 0.005 instead of 0.1, which was tuned for sgd; choose with --set rate=..."
    assert capsys.readouterr().err.splitlines()[0] == note
    assert "rate = 0.005 # instead of 0.1, which was tuned for sgd" in Path("runs/x/recipe.toml").read_text()
    assert rueda("train", "clouds.py", "--set", "optimizer=lamb", "--set", "rate=0.01", "--epochs", "1") == 0
    assert "learning rate" not in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2", None])
def test_a_task_file_that_changes_the_directory(
    workers: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run lies where the command was typed, whoever executes the file; without --workers that is the command."""
    (tmp_path / "elsewhere").mkdir()
    more = f"import os\nos.chdir({str(tmp_path / 'elsewhere')!r})\n"
    if workers is None:
        more += "from dataclasses import replace\ntask = replace(task, recipe=task.recipe.change(workers=2))\n"
    Path("leaves.py").write_text(Path("clouds.py").read_text() + more)
    words = ["train", "leaves.py", "--epochs", "1", "--run", "runs/x", *([] if workers is None else ["-np", workers])]
    if workers == "1":
        here = Path.cwd()
        assert rueda(*words) == 0
        os.chdir(here)
        shown = capsys.readouterr().out
    else:
        done = subprocess.run([sys.executable, "-m", "rueda", *words], env=environ(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown = done.stdout
    assert shown == "run: runs/x\nnext: rueda report runs/x\n"
    assert Path("runs", "x", "metrics.jsonl").is_file() and not list((tmp_path / "elsewhere").iterdir())


def test_a_run_remembers_its_task_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is resumed without naming the task, from any directory; a file that changed or went is told in one line."""
    run, file = Path("runs", "x").absolute(), Path("clouds.py").absolute()
    assert rueda("train", "clouds.py", "--epochs", "1", "--run", "runs/x", "--json") == 0
    assert Run(run).task_name() == str(file)
    os.chdir(tmp_path)
    assert rueda("train", "--resume", "--run", str(run), "--epochs", "2", "--json") == 0
    assert [row.epoch for row in Run(run).rows("epoch")] == [1, 2] and capsys.readouterr().err == ""
    file.write_text(file.read_text() + "# changed")
    assert rueda("train", "--resume", "--run", str(run), "--epochs", "3", "--json") == 0
    assert capsys.readouterr().err == f"note: here/clouds.py has changed since {run} was trained\n"
    file.unlink()
    assert rueda("train", "--resume", "--run", str(run), "--epochs", "4") == 2
    told = f"{run}: its task file {file} is no longer there; put it back, or name the task"
    assert " ".join(capsys.readouterr().err.split()) == f"rueda: {told}"
    assert rueda("train", "--epochs", "1") == 2
    told = "TASK: expected a built-in name or a Python file, got 'nothing'; name the task to train"
    assert " ".join(capsys.readouterr().err.split()) == f"rueda: {told}"


def test_a_resumed_run_says_where_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "clouds.py", "--run", "runs/x")
    assert rueda(*words, "--epochs", "1") == 0
    assert "resuming" not in capsys.readouterr().err
    assert rueda(*words, "--epochs", "2", "--resume") == 0
    assert capsys.readouterr().err.startswith("clouds on 1 worker, resuming at epoch 2, step 10\n")
    assert rueda(*words, "--epochs", "2", "--resume") == 0
    assert capsys.readouterr().err.startswith("clouds on 1 worker, already trained to its end\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR2, 75)])
def test_a_signal_before_the_first_step_says_that_nothing_was_saved(
    number: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)  # has no effect yet
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr("rueda.train.loop.load_task_and_data", load)
    with hearing_ctrl_c():
        assert rueda("train", "clouds.py", "--run", "a") == status
    assert capsys.readouterr().err == "stopped; nothing new was saved\n"
