"""Every stage takes any task: each kind of ``anytask`` is measured on two workers, planned from that and studied."""

from __future__ import annotations

from pathlib import Path

import pytest

from anytask import TASKS
from harness import workers
from measure.test_measure_task import LITTLE
from rueda.measure import measure
from rueda.plan import make_plan, this_machine
from rueda.study import study_techniques


@pytest.mark.parametrize("name", TASKS)
@workers(2)
def test_measured_and_planned(name: str) -> None:
    task = TASKS[name]()
    profile = measure(task, batches=[4, 8], budget=LITTLE)
    assert [step.batch for step in profile.steps] == [4, 8]
    assert all(step.seconds > 0 for step in profile.steps) and [one.workers for one in profile.together] == [2]
    plan = make_plan(profile, this_machine(profile), workers=[1, 2])
    assert {row.workers for row in plan.rows} == {1, 2} and all(row.images_per_second > 0 for row in plan.rows)


@pytest.mark.parametrize("name", TASKS)
def test_studied(name: str, tmp_path: Path) -> None:
    rows = ("one-worker", "naive", "linear-warmup")
    study = study_techniques(TASKS[name](), workers=2, rows=rows, epochs=1, folder=tmp_path / "study", progress=False)
    assert [row.name for row in study.rows] == list(rows)
    values = [row.test_value if row.test_accuracy is None else row.test_accuracy for row in study.rows]
    assert all(value is not None for value in values), values
