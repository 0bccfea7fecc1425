"""The scripts of examples: run in this process, or on two workers by ``rueda run``."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "integrations"


def run_example(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Run a script in this process, since a start with torch costs seconds; return its names."""
    monkeypatch.chdir(folder)
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def run_example_on_two(name: str, folder: Path) -> str:
    """Run a script of the integrations on two workers; return what it printed."""
    return run_on_two(EXAMPLES / name, folder)


def run_on_two(script: Path, folder: Path, *words: str) -> str:
    """Run a script on two workers by ``rueda run``; return what it printed."""
    command = [sys.executable, "-m", "rueda", "run", "-np", "2", sys.executable, str(script), *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
