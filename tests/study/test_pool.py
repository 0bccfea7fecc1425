"""Processes of a study: what stops it, and what only one run dies of."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rueda.records import Recipe
from rueda.study import pool
from rueda.study.pool import Job, Stopped, run_in_processes


def run(monkeypatch: pytest.MonkeyPatch, script: str, waiting: Any = lambda: None) -> list[str]:
    """Run a shell script as the only job; gives why it failed."""
    failures: list[str] = []

    def start(task: str, job: Job, at_once: int) -> Any:
        process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True)
        return pool._Process(job, process, tempfile.TemporaryFile())

    monkeypatch.setattr(pool, "_start", start)
    run_in_processes(
        "task", [Job("naive", 0, Recipe(), Path("none"))], 1, waiting=waiting, started=lambda job: None,
        finished=lambda job: None, failed=lambda job, error: failures.append(str(error)),
    )  # fmt: skip
    return failures


@pytest.mark.parametrize(
    ("script", "reason"), [("kill -9 $$", "killed by SIGKILL"), ("exit 137", "status 137"), ("exit 2", "status 2")]
)
def test_a_killed_run_is_a_failure(script: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, script) == [reason]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_stopped_stops_the_study(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped) as stop:
        run(monkeypatch, f"exit {128 + number}")
    assert stop.value.signal == number


def test_termination_of_the_study_is_told_from_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped) as stop:
        run(monkeypatch, "exec sleep 30", waiting=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert stop.value.signal == signal.SIGTERM
    with pytest.raises(KeyboardInterrupt) as ended:
        run(monkeypatch, "exec sleep 30", waiting=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert not isinstance(ended.value, Stopped)
