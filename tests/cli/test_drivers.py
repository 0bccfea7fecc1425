"""Commands that start others: the process of the command itself loads no torch, and ends as its signal says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from commandline import environ, rueda_without_torch, settle_in

SLOW = """
import os, time
from dataclasses import replace
from pathlib import Path
from tinytask import network
def slow(**settings):
    model = network(**settings)
    model.register_forward_hook(wait)
    return model
def wait(*_):
    time.sleep(0.05)
    if os.environ.get("RANK", "0") == "0" and Path("slow step").exists():
        Path("slow step").unlink()
        time.sleep(6 if "RANK" in os.environ else 2)  # torch's agent would kill its workers after 5 seconds
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
    "measure": ("measure clouds.py --quick --batches 500 --json", "batch: expected from 1 to 240, got 500"),
}


@pytest.mark.parametrize(("command", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_that_others_find_is_one_line(command: str, line: str) -> None:
    done = rueda_without_torch(*command.split())
    assert done.returncode == 2
    told = [words for words in done.stderr.splitlines() if "which they share" not in words]  # two workers on one core
    assert len(told) == 1 and told[0].startswith("rueda: ") and line in told[0]
    assert not Path("runs").exists() and not Path("profile.json").exists()


def test_tasks_of_srun_are_the_workers_of_a_training() -> None:
    """`srun -n 2 rueda train TASK --workers 2`: two processes in all, which train one run."""
    slurm = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2",
             "SLURM_STEP_NODELIST": "localhost"}  # fmt: skip
    words = [sys.executable, "-m", "rueda", "train", "clouds.py", "--workers", "2", "--epochs", "1", "--run", "a"]
    tasks = [
        subprocess.Popen(
            words, env=environ(**slurm, SLURM_PROCID=rank, SLURM_LOCALID=rank), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    told = [task.communicate(timeout=180)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], told
    assert "clouds on 2 workers" in told[0] and told[1] == ""


def wait_until(condition: Any, seconds: float = 180) -> None:
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
    ("study clouds.py --workers 2 --rows one-worker,naive --epochs 1000", signal.SIGTERM),
]
"""one worker and SIGINT stand in tests/train/test_resume.py, a study and SIGINT in tests/study/test_techniques.py,
two workers and SIGTERM below and in tests/world/launch/test_local.py"""


@pytest.mark.parametrize(("command", "number"), LONG)
def test_a_signal_lets_trainings_save_and_is_the_status(command: str, number: signal.Signals) -> None:
    Path("clouds.py").write_text(Path("clouds.py").read_text() + SLOW)
    words = [sys.executable, "-m", "rueda", *command.split()]
    process = subprocess.Popen(words, env=environ(), stderr=subprocess.PIPE, text=True, preexec_fn=take_ctrl_c)
    try:
        wait_until(lambda: list(Path("runs").rglob("metrics.jsonl")) and list(Path("runs").rglob("step-*")))
        process.send_signal(number)
        _, error = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 128 + number, error
    assert "Traceback" not in error
    if "study" in command:
        assert "stopped; run the same command again to resume" in error
    else:
        assert re.search(r"^saved at step \d+; go on with --resume$", error, re.MULTILINE), error


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_to_every_process_in_a_slow_step_keeps_the_checkpoint(workers: str) -> None:
    """As scancel and systemd send it: to the command, the agent and the workers at once."""
    Path("clouds.py").write_text(Path("clouds.py").read_text() + SLOW)
    words = [
        sys.executable,
        "-m",
        "rueda",
        "train",
        "clouds.py",
        "--workers",
        workers,
        "--epochs",
        "1000",
        "--run",
        "a",
    ]
    mark = uuid.uuid4().hex
    process = subprocess.Popen(words, env=environ(JOB_MARK=mark), stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: list(Path("a").rglob("step-*")))
        Path("slow step").touch()
        wait_until(lambda: not Path("slow step").exists())
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if mark.encode() in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGTERM)
        _, error = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 143 and "Traceback" not in error, error
    found = re.search(r"^saved at step (\d+); go on with --resume$", error, re.MULTILINE)
    assert found is not None, error
    assert max(int(file.name[5:].split(".")[0]) for file in Path("a").rglob("step-*.pt")) == int(found[1])


def test_sigusr1_saves_and_sigusr2_is_requeued() -> None:
    Path("clouds.py").write_text(Path("clouds.py").read_text() + SLOW)
    words = ["train", "clouds.py", "--workers", "2", "--epochs", "1000", "--run", "a", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rueda", *words], env=environ(), stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: list(Path("a").rglob("step-*")))
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "saved" in line)
        assert re.fullmatch(r"saved at step \d+\n", line)
        process.send_signal(signal.SIGUSR2)
        _, error = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 75 and re.search(r"^saved at step \d+; go on with --resume$", error, re.MULTILINE)
