"""Commands that start others: the process of the command itself loads no torch, and ends as its signal says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commandline import settle_in

# Python imports this module when it starts; the variable is gone for the processes that the command starts.
WATCH = """
import atexit, os, sys
if os.environ.pop("TELL_MODULES", None):
    file = os.environ["MODULES_FILE"]
    atexit.register(lambda: open(file, "w").write(repr("torch" in sys.modules)))
"""
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


def environ(**more: str) -> dict[str, str]:
    tests = str(Path(__file__).parents[1])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([os.getcwd(), tests]), **more}


def save_weights() -> None:
    import torch

    from tinytask import network

    torch.save(network().state_dict(), "one.pt")


COMMANDS = {
    "train": "train clouds.py --workers 2 --epochs 1",
    "examine": "examine one.pt --task clouds.py --points 2 --workers 2 --folder out",
    "study": "study clouds.py --workers 2 --rows naive --epochs 1 --confirm",
    "forecast": "forecast clouds.py --target-error 0.2 --sizes 40,160 --seeds 1 --epochs 1",
    "measure": "measure clouds.py --quick --workers 2 --batches 8",
}
MISTAKES = {
    "train": ("train clouds.py --workers 2 --set speed=9", "did you mean seed?"),
    "a task file": ("train none.py --workers 2", "task: expected a Python file that exists, got 'none.py'"),
    "examine": ("examine none.pt --task clouds.py --workers 2", "expected a run folder or a checkpoint file"),
    "study": ("study clouds.py --workers 2 --rows lamp", "did you mean lamb?"),
    "forecast": ("forecast clouds.py --target-error 0.2 --sizes 9999", "size: expected from 1 to 240"),
    "measure": ("measure clouds.py --quick --workers 2 --batches 500 --json", "batch: expected from 1 to 240, got 500"),
}


def run_watched(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command; leaves ``modules``, which says whether its own process has loaded torch."""
    Path("sitecustomize.py").write_text(WATCH)
    watched = environ(TELL_MODULES="1", MODULES_FILE=str(Path("modules").resolve()))
    words = [sys.executable, "-m", "rueda", *command.split()]
    return subprocess.run(words, env=watched, capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_waits_for_others_loads_no_torch(command: str) -> None:
    save_weights()
    done = run_watched(command)
    assert done.returncode == 0, done.stderr
    assert Path("modules").read_text() == "False"


@pytest.mark.parametrize(("command", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_that_others_find_is_one_line(command: str, line: str) -> None:
    done = run_watched(command)
    assert done.returncode == 2 and Path("modules").read_text() == "False"
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


LONG = {
    "one worker": "train clouds.py --epochs 1000 --run runs/one",
    "two workers": "train clouds.py --workers 2 --epochs 1000 --run runs/two",
    "study": "study clouds.py --workers 2 --rows one-worker,naive --epochs 1000",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", LONG.values(), ids=LONG)
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
