"""The toolbox inside the loop: every named recipe trains, and each technique does what its name says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.nn import GhostBatchNorm1d, SyncBatchNorm
from rueda.optim import AdaScale
from rueda.optim.rates import build_schedule
from rueda.records import Recipe, Row, Run
from rueda.records.recipe.named import NAMED, named_recipe
from rueda.report.model import short
from rueda.report.rates import scheduled_rates
from rueda.study.runs import is_finished
from rueda.tasks.task import Task
from rueda.train import fit
from rueda.train.training import StepResult
from rueda.world import current
from tinytask import clouds, network, parameters, rehearsal, run, stop_before, tiny_task, training


def rows_of(recipe: Recipe, *, alone: bool = False, task: Task | None = None) -> list[Row]:
    job = training(task or tiny_task(480), recipe, alone=alone)
    rows: list[Row] = []
    run(job, rows)
    return rows


@pytest.mark.parametrize("name", NAMED)
@workers(2)
def test_every_named_recipe_trains(name: str) -> None:
    base = Recipe(batch=24, epochs=4, rate=0.05)
    world = current()
    if name == "one-worker":
        rows = rows_of(base, alone=True)
    else:
        rows = rows_of(named_recipe(name, base, world.size))
    losses = [row.train_loss for row in rows]
    assert all(loss is not None and loss == loss for loss in losses)
    assert losses[-1] < losses[0]  # type: ignore[operator]
    assert not rows[-1].diverged


def check_growth() -> None:
    """Updates fall as in the schedule, and every example is seen once an epoch."""
    size = current().size
    seen: list[torch.Tensor] = []

    class Watch(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.training:
                seen.append(inputs[:, 0].clone())
            return inputs

    data = clouds(480, 1)
    task = Task(
        name="growth", model=lambda: nn.Sequential(Watch(), network()), train=lambda: data,
        test=lambda: clouds(10, 2),
    )  # fmt: skip
    recipe = Recipe(
        batch=24 // size, base_batch=24, epochs=4, growth_factor=2.0, milestones=(1.0, 3.0), largest_batch=96,
    )  # fmt: skip
    rows = rows_of(recipe, task=task)
    assert [row.step for row in rows] == [20, 30, 40, 45]  # batches of 24, 48, 48, 96
    assert [row.global_batch for row in rows] == [24, 48, 48, 96]
    mine = torch.cat(seen).reshape(4, -1)  # epochs x this worker's examples
    everyone = torch.cat(current().all_gather(mine), dim=1) if size > 1 else mine
    for epoch in everyone:
        assert torch.equal(epoch.sort().values, data.inputs[:, 0].sort().values)
    # At most the batch that fits is taken at once: the rest is accumulated.
    assert {len(part) for part in seen} == {24 // size}


def test_batch_growth_on_one_worker() -> None:
    check_growth()


@workers(2)
def test_batch_growth_on_two_workers() -> None:
    check_growth()


@workers(3)
def test_batch_growth_on_three_workers() -> None:
    check_growth()


LIMITED = Recipe(
    batch=8, epochs=6, rate=0.1, growth_factor=4.0, milestones=(2.0, 3.0, 5.0), largest_batch=48, momentum=0.9,
    warmup_epochs=1, scaling="sqrt", base_batch=8, log_every=1,
)  # fmt: skip


@pytest.mark.parametrize("schedule", ["constant", "cosine", "polynomial"])
def test_growth_that_reaches_its_largest_batch_goes_on_in_the_rate(schedule: str) -> None:
    """rate / batch falls by 4 at each milestone below the schedule's own rate, 64-fold in all, also in a rehearsal."""
    recipe = LIMITED.change(schedule=schedule, workers=2)
    job = rehearsal(tiny_task(480), recipe)
    rows: list[Row] = []
    clocks = []
    original = job.step

    def step(**options: Any) -> StepResult:
        clocks.append(job.state.clock)
        return original(**options)

    job.step = step  # type: ignore[method-assign]
    run(job, rows)
    steps = [row for row in rows if row.kind == "step"]
    assert {row.global_batch for row in steps} == {16, 48}
    plain = build_schedule(recipe, 480 // 16)
    for row, clock in zip(steps, clocks, strict=True):
        reached = sum(clock >= 30 * milestone for milestone in recipe.milestones)
        assert row.rate / row.global_batch == pytest.approx(plain(clock) / 16 / 4**reached, rel=1e-12)
    ends = [row for row in rows if row.kind == "epoch"]
    curve = scheduled_rates(recipe, ends)  # the report draws the same rates
    assert curve["epochs"][-1] == 6 and (schedule != "constant" or curve["rate"][-1] == short(ends[-1].rate))
    if schedule == "constant":
        assert ends[1].rate / 16 / (ends[-1].rate / 48) == pytest.approx(64)


@workers(2)
def test_limited_growth_resumes_where_it_was(tmp_path: Path) -> None:
    recipe = LIMITED.change(checkpoint_every=5, log_every=None)
    whole = rueda.fit(tiny_task(480), recipe, folder=tmp_path / "whole", progress=False)
    for stop in (72, 94):  # within the epochs that have batches of 48
        with pytest.MonkeyPatch.context() as patch:
            stop_before(patch, stop)
            with pytest.raises(RuntimeError, match="stop"):
                rueda.fit(tiny_task(480), recipe, folder=tmp_path / "stopped", progress=False, resume=True)
        current().barrier()
    again = rueda.fit(tiny_task(480), recipe, folder=tmp_path / "stopped", progress=False, resume=True)
    assert torch.equal(parameters(whole.model), parameters(again.model))
    rates, others = ([row.rate for row in Run(tmp_path / name).rows("epoch")] for name in ("whole", "stopped"))
    assert rates == others
    assert [rate / rates[1] for rate in rates[2:]] == pytest.approx([3 / 4, 3 / 16, 3 / 16, 3 / 64])


def test_growth_stops_at_the_number_of_examples() -> None:
    recipe = Recipe(batch=24, epochs=3, growth_factor=10.0, milestones=(1.0, 2.0), largest_batch=100_000)
    rows = rows_of(recipe, alone=True)
    assert [(row.step, row.global_batch) for row in rows] == [(20, 24), (22, 240), (23, 480)]
    assert [row.rate / recipe.rate for row in rows] == pytest.approx([1, 1, 0.2])


def test_longer_training_keeps_the_updates() -> None:
    one = rows_of(Recipe(batch=24, epochs=2))
    many = rows_of(Recipe(batch=96, base_batch=24, epochs=2, keep_updates=True))
    assert many[-1].epoch == 8 and many[-1].step == one[-1].step == 40


@workers(2)
def test_rates_scale_and_warm_up() -> None:
    recipe = Recipe(batch=24, epochs=4, rate=0.1, scaling="linear", warmup_epochs=2, log_every=1)
    steps = [row for row in rows_of(recipe) if row.kind == "step"]
    assert len(steps) == 40
    rates = [row.rate for row in steps]
    assert rates[0] == pytest.approx(0.1) and rates[20:] == pytest.approx([0.2] * 20)
    increments = [b - a for a, b in pairwise(rates[:21])]
    assert increments == pytest.approx([0.1 / 20] * 20)  # a constant more each step


@workers(2)
def test_normalisation_is_what_the_recipe_says() -> None:
    base = Recipe(batch=24, epochs=1, model={"batch_norm": True})
    ghost = training(tiny_task(), base.change(ghost_batch=8)).model
    assert isinstance(ghost[1], GhostBatchNorm1d) and ghost[1].ghost_batch == 8  # type: ignore[index]
    sync = training(tiny_task(), base.change(sync_batch_norm=True))
    assert isinstance(sync.model[1], SyncBatchNorm)  # type: ignore[index]
    # Joined statistics: two workers with a half each equal one worker with the whole batch.
    half = base.change(batch=12, sync_batch_norm=True, precision="float64", epochs=2)
    two = run(training(tiny_task(), half))
    one = run(training(tiny_task(), base.change(precision="float64", epochs=2), alone=True))
    assert torch.allclose(parameters(two.model), parameters(one.model), rtol=1e-9, atol=1e-12)
    with pytest.raises(RecipeError, match="needs a model with batch norm"):
        training(tiny_task(), Recipe(batch=24, ghost_batch=8))


@workers(2)
def test_few_steps_are_recalibrated() -> None:
    recipe = Recipe(batch=24, epochs=2, model={"batch_norm": True}, precision="float64")
    short, trusting = rows_of(recipe), rows_of(recipe.change(recalibrate="never"))
    assert [row.recalibrated for row in short] == [True, True]
    assert [row.recalibrated for row in trusting] == [False, False]
    long = rows_of(recipe.change(batch=2, epochs=1))
    assert long[0].step == 120 and not long[0].recalibrated
    # The statistics are the exact ones of the training data under the trained weights.
    job = training(tiny_task(480), recipe)
    run(job)
    norm = job.model[1]  # type: ignore[index]
    data = clouds(480, 1)
    with torch.no_grad():
        hidden = job.model[0](data.inputs.double())  # type: ignore[index]
    assert torch.allclose(norm.running_mean, hidden.mean(0)) and torch.allclose(norm.running_var, hidden.var(0))


@workers(2)
def test_gradient_noise_changes_the_path_but_not_the_aim() -> None:
    recipe = Recipe(batch=24, epochs=4, rate=0.05)
    quiet, noisy = rows_of(recipe), rows_of(recipe.change(gradient_noise=1.0))
    assert quiet[-1].train_loss != noisy[-1].train_loss
    assert noisy[-1].train_loss < noisy[0].train_loss  # type: ignore[operator]
    again = rows_of(recipe.change(gradient_noise=1.0))
    assert [row.train_loss for row in again] == [row.train_loss for row in noisy]
    assert rows_of(recipe.change(gradient_noise=1.0, scaling="sqrt"))[-1].train_loss == pytest.approx(
        rows_of(recipe.change(scaling="sqrt"))[-1].train_loss
    )  # square-root scaling keeps the covariance by itself


@workers(2)
def test_adascale_gains_between_one_and_the_workers() -> None:
    job = training(tiny_task(480), Recipe(batch=24, epochs=3, rate=0.05, adascale=True, log_every=1))
    rows: list[Row] = []
    run(job, rows)
    gains = [row.rate / 0.05 for row in rows if row.kind == "step"]
    assert all(1.0 - 1e-9 <= gain <= 2.0 + 1e-9 for gain in gains) and max(gains) > 1.05
    assert isinstance(job.optimizer, AdaScale)
    assert job.state.clock == pytest.approx(sum(gains))
    assert len(set(current().all_gather_object(job.state.clock))) == 1


def test_additive_noise_and_clipping_together() -> None:
    rows = rows_of(Recipe(batch=24, epochs=3, additive_noise=0.01, clip=1.0))
    assert rows[-1].train_loss < rows[0].train_loss  # type: ignore[operator]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_adascale_ends_where_its_clock_reaches_the_steps_of_one_worker(schedule: str, tmp_path: Path) -> None:
    """Two epochs of one worker are 40 steps; four workers with a gain below 4 need more than two epochs for them."""
    recipe = Recipe(workers=4, batch=24, epochs=2, rate=0.05, adascale=True, schedule=schedule, log_every=1)
    result = fit(tiny_task(480), recipe, rehearse=True, progress=False, folder=tmp_path)
    rows = Run(tmp_path).rows("epoch")
    steps = Run(tmp_path).rows("step")
    assert result.status == "finished" and rows[-1].last and not any(row.last for row in rows[:-1])
    assert 2 < rows[-1].epoch < 8  # a gain between 1 and 4
    if schedule == "constant":
        gains = [row.rate / 0.05 for row in steps]
        assert sum(gains) >= 40 > sum(gains[:-1])  # it stops within an epoch
    else:
        assert steps[-1].rate < 0.1 * max(row.rate for row in steps)  # the rate has come down with the clock
    assert is_finished(tmp_path, recipe) and not is_finished(tmp_path, recipe.change(epochs=3))
    again = fit(tiny_task(480), recipe, rehearse=True, progress=False, folder=tmp_path, resume=True)
    assert again.status == "finished" and len(Run(tmp_path).rows("epoch")) == len(rows)  # nothing was left to do


def test_resume_with_growth_and_adascale(tmp_path) -> None:  # type: ignore[no-untyped-def]
    recipe = Recipe(
        batch=24, epochs=4, growth_factor=2.0, milestones=(2.0,), largest_batch=48, optimizer="lamb", rate=0.01,
    )  # fmt: skip
    whole = rueda.fit(tiny_task(480), recipe, progress=False)
    rueda.fit(tiny_task(480), recipe.change(epochs=2), folder=tmp_path, progress=False)
    resumed = rueda.fit(tiny_task(480), recipe, folder=tmp_path, resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))
