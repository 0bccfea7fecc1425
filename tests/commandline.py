"""The ``rueda`` command inside the test's own process, with a small task file beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rueda.world.launch import LaunchPlan, Show

TASK = """
import sys
sys.path.insert(0, {tests!r})
from tinytask import tiny_task
task = tiny_task()
"""


def settle_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *, columns: int = 120) -> None:
    """Go to a folder with a task file ``clouds.py``, one thread, and a terminal of some columns."""
    (folder / "clouds.py").write_text(TASK.format(tests=str(Path(__file__).parent)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def rueda(*words: str) -> int:
    """Run a command in this process, since a start with torch costs seconds; gives its exit status."""
    from rueda.cli import main

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["rueda", *words])
        main()
    return int(ended.value.code or 0)


def catch_launches(monkeypatch: pytest.MonkeyPatch, status: int) -> list[tuple[LaunchPlan, Show]]:
    """Collect what would have been launched; each launch ends with a status."""
    seen: list[tuple[LaunchPlan, Show]] = []

    def launch(plan: LaunchPlan, *, show: Show) -> int:
        seen.append((plan, show))
        return status

    monkeypatch.setattr("rueda.world.launch.driver.launch", launch)
    return seen
