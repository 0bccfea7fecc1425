"""The ``rueda`` command, in the test's own process or in one of its own, with a small task file beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from harness import QUICK_START
from rueda.world.launch import LaunchPlan, OutputOptions

Launches = list[tuple[LaunchPlan, OutputOptions]]  # the plans that would have been launched

TASK = """
import sys
sys.path.insert(0, {tests!r})
from tinytask import tiny_task
task = tiny_task()
"""

# Python imports this module when it starts; the variable is gone for the processes that the command starts.
WATCH = """
import atexit, os, sys
if os.environ.pop("TELL_MODULES", None):
    file = os.environ["MODULES_FILE"]
    atexit.register(lambda: open(file, "w").write(repr("torch" in sys.modules)))
"""


def settle_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *, columns: int = 120) -> None:
    """Go to a folder with a task file ``clouds.py``, one thread, and a terminal of some columns."""
    (folder / "clouds.py").write_text(TASK.format(tests=str(Path(__file__).parent)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def rueda(*words: str) -> int:
    """Run a command in this process, since a start with torch costs seconds; return its exit status."""
    from rueda.cli import run_command

    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.dict(os.environ),
    ):  # a command may set variables for its workers
        patch.setattr(sys, "argv", ["rueda", *words])
        return run_command()


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Let this process hear SIGINT, which the background of a script ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def environ(**more: str) -> dict[str, str]:
    """Give the environment of a command in a process of its own, in which the tests' modules are found."""
    path = os.pathsep.join([os.getcwd(), str(Path(__file__).parent), QUICK_START])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def rueda_without_torch(*words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that only starts others in a process of its own, which must not load torch."""
    modules = Path("modules").resolve()
    Path("sitecustomize.py").write_text(Path(QUICK_START, "sitecustomize.py").read_text() + WATCH)  # it hides that one
    watched = environ(TELL_MODULES="1", MODULES_FILE=str(modules))
    command = [sys.executable, "-m", "rueda", *words]
    done = subprocess.run(command, env=watched, input=input, capture_output=True, text=True)
    assert modules.read_text() == "False", f"rueda {words[0]} has loaded torch"
    return done


def catch_launches(monkeypatch: pytest.MonkeyPatch, status: int) -> Launches:
    """Collect what would have been launched; each launch ends with a status."""
    seen: Launches = []

    def launch(plan: LaunchPlan, *, output: OutputOptions, failed: object = None) -> int:
        seen.append((plan, output))
        return status

    monkeypatch.setattr("rueda.world.launch.driver.launch", launch)
    return seen
