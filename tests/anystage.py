"""The stages around a training, on any task: measure it, plan it, study it."""

from __future__ import annotations

from pathlib import Path

from rueda.measure import measure
from rueda.measure.request import Budget
from rueda.plan import make_plan, this_machine
from rueda.study import study_techniques
from rueda.tasks import Task

BRIEF = Budget(steps=0.1, communication=0.1, together=0.1, noise=0.1, longest_step=5.0, sizes=(4, 4096))


def measured_and_planned(task: Task) -> None:
    """Measure a task on these two workers, and plan from that."""
    profile = measure(task, batches=[4, 8], budget=BRIEF)
    assert [step.batch for step in profile.steps] == [4, 8]
    assert all(step.seconds > 0 for step in profile.steps) and [one.workers for one in profile.together] == [2]
    plan = make_plan(profile, this_machine(profile), workers=[1, 2])
    assert {row.workers for row in plan.rows} == {1, 2} and all(row.images_per_second > 0 for row in plan.rows)


def studied(task: Task, folder: Path) -> None:
    """Study a task on two rehearsed workers: every row has its figure."""
    rows = ("one-worker", "naive", "linear-warmup")
    study = study_techniques(task, workers=2, rows=rows, epochs=1, folder=folder, progress=False)
    assert [row.name for row in study.rows] == list(rows)
    values = [row.test_value if row.test_accuracy is None else row.test_accuracy for row in study.rows]
    assert all(value is not None for value in values), values
