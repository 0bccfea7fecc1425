"""Commands that start others: the process of the command itself loads no torch, and ends as its signal says."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commandline import environ, rueda_without_torch, settle_in

SLOW = """
import time
from dataclasses import replace
from tinytask import network
def slow(**settings):
    model = network(**settings)
    model.register_forward_hook(lambda *_: time.sleep(0.05))
    return model
task = replace(task, model=slow)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_in(tmp_path, monkeypatch)


MISTAKES = {
    "train": ("train clouds.py --workers 2 --set speed=9", "did you mean seed?"),
    "a task file": ("train none.py --workers 2", "task: expected a Python file that exists, got 'none.py'"),
    "examine": ("examine none.pt --task clouds.py --workers 2", "expected a run folder or a checkpoint file"),
    "study": ("study clouds.py --workers 2 --rows lamp", "did you mean lamb?"),
    "forecast": ("forecast clouds.py --target-error 0.2 --sizes 9999", "size: expected from 1 to 240"),
    "measure": ("measure clouds.py --quick --workers 2 --batches 500 --json", "batch: expected from 1 to 240, got 500"),
}


def test_a_training_on_two_workers_loads_no_torch_beside_them() -> None:
    done = rueda_without_torch("train", "clouds.py", "--workers", "2", "--epochs", "1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("command", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_that_others_find_is_one_line(command: str, line: str) -> None:
    done = rueda_without_torch(*command.split())
    assert done.returncode == 2
    assert done.stderr.startswith("rueda: ") and line in done.stderr and len(done.stderr.splitlines()) == 1
    assert not Path("runs").exists() and not Path("profile.json").exists()


def wait_until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def take_ctrl_c() -> None:
    """Let a process hear SIGINT though the tests may run in the background of a script, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


LONG = [
    ("train clouds.py --epochs 1000 --run runs/one", signal.SIGTERM),
    ("train clouds.py --workers 2 --epochs 1000 --run runs/two", signal.SIGINT),
    ("train clouds.py --workers 2 --epochs 1000 --run runs/two", signal.SIGTERM),
    ("study clouds.py --workers 2 --rows one-worker,naive --epochs 1000", signal.SIGTERM),
]
"""one worker and SIGINT stand in tests/train/test_resume.py, a study and SIGINT in tests/study/test_techniques.py"""


@pytest.mark.parametrize(("command", "number"), LONG)
def test_a_signal_lets_trainings_save_and_is_the_status(command: str, number: signal.Signals) -> None:
    Path("clouds.py").write_text(Path("clouds.py").read_text() + SLOW)
    words = [sys.executable, "-m", "rueda", *command.split()]
    process = subprocess.Popen(words, env=environ(), stderr=subprocess.PIPE, text=True, preexec_fn=take_ctrl_c)
    try:
        wait_until(lambda: list(Path("runs").rglob("metrics.jsonl")) and list(Path("runs").rglob("step-*")))
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, error
    assert "Traceback" not in error
    if "study" in command:
        assert "stopped; the same command goes on where it was" in error
