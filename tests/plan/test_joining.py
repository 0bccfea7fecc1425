"""Workers that join as the batch grows: against sums made by hand, in words, on the page, and run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from commandline import rueda as command
from plan.profiles import RECIPE, profile, step
from rueda.plan import Cluster, Link, make_plan
from rueda.records.plan import Joining, JoiningPhase, Plan
from rueda.records.profile import Profile
from rueda.records.run import Run
from rueda.report.collect import collect
from rueda.report.page import render

FREE = Cluster(
    name="free", devices_per_node=8, jitter=0.0, speed=1.0, inside=Link(latency=0, bandwidth=1e15),
    between=Link(latency=0, bandwidth=1e15),
)  # fmt: skip
BATCHES = (128, 256, 512)
UPDATES = [epochs * (60_000 // batch) for batch, epochs in zip(BATCHES, (10, 5, 5), strict=True)]


def measured(seconds_of_64: float = 0.01, seconds_of_1: float = 0.01) -> Profile:
    """20 epochs with batch norm: no noise scale: 64 workers grow from 128 to 512."""
    recipe = RECIPE.change(epochs=20).to_toml()
    return profile([step(1, seconds_of_1), step(64, seconds_of_64)], batch_norm=True, recipe=recipe)


def joining(plan: Plan) -> Joining:
    assert plan.joining is not None
    return plan.joining


def test_a_step_that_lasts_equally_long_needs_a_worker_for_each_local_batch() -> None:
    """10 ms for 1 to 64 examples: 8 workers of 64 are as fast as 64 of 8, and cost an eighth of them."""
    plan = make_plan(measured(), FREE, workers=[64])
    found = joining(plan)
    assert [phase.workers for phase in found.phases] == [2, 4, 8]
    assert [phase.global_batch for phase in found.phases] == list(BATCHES)
    assert [phase.updates for phase in found.phases] == UPDATES
    assert found.hours == pytest.approx(0.01 * sum(UPDATES) / 3600, rel=1e-6) == plan.chosen.hours
    by_hand = sum(workers * 0.01 * count for workers, count in zip((2, 4, 8), UPDATES, strict=True)) / 3600
    assert found.worker_hours == pytest.approx(by_hand, rel=1e-6)
    assert found.node_hours == pytest.approx(0.01 * sum(UPDATES) / 3600, rel=1e-6)
    assert found.money is None
    assert found.words() == "epochs 0-10: 2 workers, 10-15: 4, 15-20: 8"
    text = next(line for line in plan.advice if "join" in line)
    assert found.words() in text and "worker-hours instead of" in text and "rueda train --resume" in text


def test_whole_nodes_are_paid() -> None:
    """At 10 for a node of 2: 1, 2 and 4 nodes instead of 32 all the time."""
    plan = make_plan(measured(), replace(FREE, price_per_hour=10.0, devices_per_node=2), workers=[64])
    found = joining(plan)
    by_hand = sum(10 * nodes * 0.01 * count / 3600 for nodes, count in zip((1, 2, 4), UPDATES, strict=True))
    assert found.money == pytest.approx(by_hand, rel=1e-6)
    assert plan.chosen.money == pytest.approx(10 * 32 * plan.chosen.hours)
    assert any("USD instead of" in line for line in plan.advice)


def test_a_worker_takes_larger_shares_in_several_passes() -> None:
    """Two hops of 0.1 s between two workers take longer than the 8 passes of 10 ms that one worker accumulates."""
    slow = replace(FREE, devices_per_node=1, inside=None, between=Link(latency=0.1, bandwidth=1e15))
    found = joining(make_plan(measured(), slow, workers=[64]))
    last = found.phases[-1]
    assert (last.workers, last.batch, last.accumulate) == (1, 64, 2)  # by which the first batch is made
    assert last.hours == pytest.approx(UPDATES[-1] * 8 * 0.01 / 3600)


def test_workers_that_all_pay_from_the_start() -> None:
    """A step in proportion to its examples: 64 workers take an eighth of the time of 8, at the same cost."""
    plan = make_plan(measured(0.064, 0.001), FREE, workers=[64])
    found = joining(plan)
    assert {phase.workers for phase in found.phases} == {64} and not found.grows
    assert found.hours == pytest.approx(plan.chosen.hours)
    assert "All 64 workers pay from the start, while the batch is still small." in plan.advice


@pytest.mark.parametrize("latency", [0.0, 1e-5, 1e-4, 1e-3, 1e-2])
def test_workers_join_and_never_leave_and_it_costs_no_more(latency: float) -> None:
    cluster = replace(FREE, between=Link(latency=latency, bandwidth=1e10))
    plan = make_plan(measured(0.03, 0.005), cluster, workers=[64])
    found, row = joining(plan), plan.chosen
    counts = [phase.workers for phase in found.phases]
    assert counts == sorted(counts) and counts[-1] <= 64
    assert found.worker_hours <= row.workers * row.hours * (1 + 1e-9)
    assert sum(phase.updates for phase in found.phases) == row.updates
    for phase in found.phases:  # each command starts from the same batch
        assert phase.workers * phase.batch * phase.accumulate == row.global_batch


def test_a_batch_that_stays_has_nobody_to_join() -> None:
    plan = make_plan(measured(), FREE, workers=[2])
    assert plan.chosen.growth_factor is None and plan.joining is None
    assert not any("join" in line for line in plan.advice)


def phase(first: int, end: int, workers: int, batch: int, accumulate: int = 1) -> JoiningPhase:
    return JoiningPhase(
        first_epoch=first, end_epoch=end, global_batch=128, workers=workers, nodes=1, batch=batch,
        accumulate=accumulate, updates=10, hours=1.0, money=None,
    )  # fmt: skip


def test_phases_with_equally_many_workers_are_one() -> None:
    found = Joining(
        phases=(phase(0, 5, 1, 64, 2), phase(5, 10, 4, 32), phase(10, 15, 4, 32)), hours=3, node_hours=3,
        worker_hours=9, money=None,
    )  # fmt: skip
    assert found.words() == "epochs 0-5: 1 worker, 5-15: 4"
    assert found.commands("glyphs-cnn", "planned.toml") == [
        "rueda train glyphs-cnn --recipe planned.toml --workers 1 --set batch=64 --set accumulate=2 --epochs 5 "
        "--run runs/joining",
        "rueda train glyphs-cnn --recipe planned.toml --workers 4 --set batch=32 --run runs/joining --resume",
    ]


def test_the_terminal_the_record_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    measured().save(Path("profile.json"))
    assert command("plan", "--workers", "64", "--cluster", "dgx-a100") == 0
    shown = capsys.readouterr().out
    plan = Plan.load("plan.json")
    for line in joining(plan).commands("glyphs-cnn", "planned.toml"):
        assert f"  {line}\n" in shown
    assert "epochs 0-10: 2 workers, 10-15: 4" in " ".join(shown.split())
    assert Plan.from_json(plan.to_json()).joining == plan.joining
    found = next(one for one in collect([tmp_path]) if one.title.startswith("Plan for"))
    table = next(table for table in found.tables if table.title == "Workers that join as the batch grows")
    assert [row[2][0] for row in table.rows] == [phase.workers for phase in joining(plan).phases]
    assert "instead of" in table.note
    page = render([found])
    assert "Workers that join as the batch grows" in page and "--run runs/joining --resume" in page
    # An older plan has no such table.
    older = plan.to_json().replace('"joining": {', '"other": {')
    assert Plan.from_json(older).joining is None


IMAGES = """
import torch
from torch import nn

import rueda


def images(count, seed):
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=draws)
    return rueda.Arrays(torch.randn(count, 1, 4, 4, generator=draws) + labels.view(-1, 1, 1, 1), labels)


task = rueda.Task(
    name="images", train=lambda: images(6400, 1), test=lambda: images(64, 2),
    model=lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)),
    recipe=rueda.Recipe(batch=16, epochs=4, rate=0.02),
)
"""


def test_the_commands_train_what_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at each milestone and resumed with more workers: the batches, rates and updates of all from the start."""
    monkeypatch.chdir(tmp_path)
    Path("images.py").write_text(IMAGES)
    small = profile(
        [step(1, 0.01), step(16, 0.01)], batch_norm=True, examples=6400,
        recipe=RECIPE.change(batch=16, epochs=4, rate=0.02).to_toml(),
    )  # fmt: skip
    plan = make_plan(small, FREE, workers=[16])
    found = joining(plan)
    assert [phase.workers for phase in found.phases] == [2, 4, 8]
    Path("planned.toml").write_text(plan.recipe)
    for line in found.commands("images.py", "planned.toml"):
        assert command(*shlex.split(line)[1:], "--rehearse") == 0
    assert command("train", "images.py", "--recipe", "planned.toml", "--rehearse", "--run", "all") == 0
    joined, whole = (Run(name).rows("epoch") for name in ("runs/joining", "all"))
    assert [row.global_batch for row in joined] == [32, 32, 64, 128]
    assert [(row.step, row.global_batch) for row in joined] == [(row.step, row.global_batch) for row in whole]
    assert [row.rate for row in joined] == pytest.approx([row.rate for row in whole])
    assert joined[-1].step == plan.chosen.updates and Run("runs/joining").recipe().workers == 8
