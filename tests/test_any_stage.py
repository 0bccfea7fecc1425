"""Every stage takes any task: each kind of ``anytask`` is measured on two workers, planned from that and studied."""

from __future__ import annotations

from pathlib import Path

import pytest

from anystage import measured_and_planned, studied
from anytask import TASKS
from harness import workers


@pytest.mark.parametrize("name", TASKS)
@workers(2)
def test_measured_and_planned(name: str) -> None:
    measured_and_planned(TASKS[name]())


@pytest.mark.parametrize("name", TASKS)
def test_studied(name: str, tmp_path: Path) -> None:
    studied(TASKS[name](), tmp_path / "study")
