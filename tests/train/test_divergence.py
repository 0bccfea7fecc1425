"""Divergence: noticed at the step, on all workers, by name; never saved; stopped, skipped or rolled back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rueda
from harness import workers
from rueda.errors import NonFiniteError, RecipeError
from rueda.records import Recipe, Run
from rueda.tasks.task import Task
from rueda.train.checkpoint import latest_checkpoint, list_checkpoints, load_checkpoint
from rueda.train.divergence import MOST_ROLL_BACKS, MOST_SKIPPED, FiniteTest, nonfinite_in_state
from rueda.world import current
from tinytask import clouds, parameters, rehearsal, tiny_task, training

RECIPE = Recipe(batch=24, epochs=2, rate=0.1)


def poisoned_task(index: int = 100, value: float = float("nan")) -> Task:
    """The tiny task with one training example that is not finite."""

    def train() -> rueda.Arrays:
        data = clouds(240, 1)
        data.inputs[index] = value
        return data

    return replace(tiny_task(), train=train)


def assert_finite(folder: Path) -> None:
    files = list_checkpoints(folder / "checkpoints")
    assert files
    for file in (folder / "checkpoints").glob("*.pt"):
        assert all(bool(tensor.isfinite().all()) for tensor in load_checkpoint(file)["model"].values()), file


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """Two good epochs, then a rate that is far too high: the good checkpoints stay, and a good rate goes on."""
    whole = rueda.fit(tiny_task(), RECIPE.change(epochs=4), progress=False)
    rueda.fit(tiny_task(), RECIPE, folder=tmp_path, progress=False)
    before = sorted(file.name for file in (tmp_path / "checkpoints").iterdir())
    wild = RECIPE.change(epochs=9, rate=1e39, checkpoint_every=1)
    diverged = rueda.fit(tiny_task(), wild, folder=tmp_path, resume=True, progress=False)
    assert diverged.status == "diverged" and "nan or inf in 0.weight" in str(diverged.divergence), diverged
    row = Run(tmp_path).rows("epoch")[-1]
    assert row.diverged and (row.epoch, row.step) == (3, 21)  # at the first step after the weights were gone
    assert sorted(file.name for file in (tmp_path / "checkpoints").iterdir()) == before
    assert_finite(tmp_path)
    resumed = rueda.fit(tiny_task(), RECIPE.change(epochs=4), folder=tmp_path, resume=True, progress=False)
    assert resumed.status == "finished" and torch.equal(parameters(resumed.model), parameters(whole.model))
    assert [row.diverged for row in Run(tmp_path).rows("epoch")] == [False] * 4


@workers(2)
def test_all_workers_notice_what_one_has_seen() -> None:
    """Only one worker's batch holds the example: both raise at the same step, and their weights are still the same."""
    job = training(poisoned_task(), RECIPE.change(batch=12))
    with pytest.raises(
        NonFiniteError, match=r"^nan or inf in the gradient of 0\.weight and 3 more: lower the learning"
    ):
        for _ in range(10):
            job.step()
    here = torch.cat([torch.tensor([float(job.state.step)]), parameters(job.model)])
    one, other = current().all_gather(here)
    assert torch.equal(one, other) and bool(one.isfinite().all())


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_parameter_that_is_gone_is_named(clip: float | None) -> None:
    job = training(tiny_task(), RECIPE.change(clip=clip), alone=True)
    job.step()
    with torch.no_grad():
        job.model[3].weight[1, 2] = float("inf")  # type: ignore[index, operator, union-attr]
    with pytest.raises(NonFiniteError, match=r"^nan or inf in 3\.weight: lower"):
        job.step()
    assert job.state.step == 1


def test_a_weight_that_no_loss_shows_is_found_when_it_is_saved(tmp_path: Path) -> None:
    """Infinity behind tanh: loss and gradients stay finite, but the checkpoint would not be."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.scale = nn.Linear(8, 3), nn.Parameter(torch.ones(1))

        def forward(self, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                self.scale.fill_(float("inf"))
            outputs: Tensor = self.body(inputs) + torch.tanh(self.scale)
            return outputs

    result = rueda.fit(replace(tiny_task(), model=Hidden), RECIPE, folder=tmp_path, progress=False)
    assert result.status == "diverged" and str(result.divergence).startswith("nan or inf in scale: ")
    assert Run(tmp_path).rows("epoch")[-1].diverged and not list_checkpoints(tmp_path / "checkpoints")


def test_what_counts_as_finite() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("mask", torch.tensor(float("-inf")))  # as attention has it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    assert nonfinite_in_state(model, optimizer) is None
    optimizer.state[model[0].bias]["momentum_buffer"][1] = float("nan")
    assert nonfinite_in_state(model, optimizer) == "momentum_buffer of 0.bias"
    model[1].running_var[0] = float("inf")
    assert nonfinite_in_state(model, optimizer) == "1.running_var and 1 more"


def test_a_large_model_is_tested_by_its_smallest_tensor() -> None:
    model = nn.Linear(100, 100, bias=False)
    test = FiniteTest(model)
    assert test.check()  # no gradient yet
    model.weight.grad = torch.zeros(100, 100)
    assert test.check()
    model.weight.grad[3, 4] = float("inf")
    with pytest.raises(NonFiniteError, match="the gradient of weight: "):
        test.check()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lars", "larc"])
def test_skip_leaves_out_the_update(optimizer: str) -> None:
    """Bit for bit the training in which the update of that batch was never made."""
    recipe = Recipe(batch=24, epochs=1, rate=0.01, optimizer=optimizer, on_divergence="skip")
    clean, poisoned = (training(task, recipe, alone=True) for task in (tiny_task(), poisoned_task()))
    done, expected = [], []
    for job, made in ((poisoned, done), (clean, expected)):
        for _ in range(10):
            skipped = job is clean and len(done) > len(made) and bool(done[len(made)][1])
            kept = ([p.clone() for p in job.model.parameters()], _copied(job.optimizer)) if skipped else None
            job.step()
            if kept is not None:
                for parameter, old in zip(job.model.parameters(), kept[0], strict=True):
                    parameter.data.copy_(old)
                job.optimizer.load_state_dict(kept[1])
            made.append((parameters(job.model), list(job.updater.remarks)))
            job.updater.remarks.clear()
    assert [len(remarks) for _, remarks in done].count(1) == 1
    assert torch.equal(done[-1][0], expected[-1][0])
    found, sums = poisoned.updater.totals.here(), poisoned.updater.totals.sums_over(poisoned.world)
    assert 0 < found.loss < 10 and 0 <= (found.primary or 0) <= 1 and sums["loss"][2] == sums["accuracy"][1] == 216


def _copied(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    import copy

    return copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize(
    "change",
    [{"precision": "fp16"}, {"precision": "fp16", "nesterov": True}, {"precision": "fp16", "optimizer": "larc"},
     {"precision": "fp16", "adascale": True}, {"on_divergence": "skip"}],
    ids=["fp16", "nesterov", "larc", "adascale", "skip"],
)  # fmt: skip
def test_first_updates_that_are_left_out_leave_no_momentum(change: dict[str, Any]) -> None:
    """The first gradients are not finite; at a tiny rate the updates after them move the weights by little.

    What torch leaves uninitialised is nan in this test, as it may be in any training.
    """
    failures = iter([float("nan")] * 2)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # torch fills new memory with nan then
    try:
        job = training(tiny_task(), RECIPE.change(momentum=0.9, rate=1e-6, **change), alone=True)
        for parameter in list(job.model.parameters())[:1]:
            parameter.register_hook(lambda gradient: gradient * next(failures, 1.0))
        start = parameters(job.model).clone()
        for _ in range(10):
            job.step()
    finally:
        torch.use_deterministic_algorithms(before)
    assert next(failures, None) is None
    assert 0 < float((parameters(job.model) - start).abs().max()) < 1e-3


def test_skipped_updates_in_a_row_are_told_in_two_lines() -> None:
    def train() -> rueda.Arrays:
        data = clouds(240, 1)
        data.inputs[:] = float("nan")
        return data

    job = training(replace(tiny_task(), train=train), RECIPE.change(on_divergence="skip"), alone=True)
    for _ in range(4):
        job.step()
    job.train_data.inputs.copy_(clouds(240, 1).inputs)
    job.step()
    assert job.updater.remarks == [
        "update 1: the gradient is not finite; the update was left out",
        "update 5: the gradient is finite again; 4 updates were left out",
    ]


def test_skip_gives_up_when_all_updates_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = replace(tiny_task(), train=lambda: rueda.Arrays(torch.full((240, 8), float("nan")), torch.zeros(240).long()))
    recipe = RECIPE.change(on_divergence="skip", batch=4)
    result = rueda.fit(task, recipe, folder=tmp_path)
    assert capsys.readouterr().err.count("the update was left out") == 1
    assert result.status == "diverged" and result.row is not None and result.row.step == MOST_SKIPPED
    assert bool(parameters(result.model).isfinite().all())


def test_ruined_but_finite_weights_do_not_evict_good_ones(tmp_path: Path) -> None:
    """Weights of 1e30 are finite, but neither a gradient nor the test loss is: short epochs of skipped updates."""
    task = replace(tiny_task(), model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    rueda.fit(task, RECIPE, folder=tmp_path, progress=False)
    before = sorted(file.name for file in (tmp_path / "checkpoints").iterdir())
    wild = RECIPE.change(epochs=20, rate=1e30, on_divergence="skip", checkpoint_every=4)
    result = rueda.fit(task, wild, folder=tmp_path, resume=True, progress=False)
    assert result.status == "diverged" and result.row is not None and result.row.epoch > 5
    assert sorted(file.name for file in (tmp_path / "checkpoints").iterdir()) == before


@pytest.mark.parametrize("kind", ["alone", "rehearsed"])
def test_roll_back_goes_on_at_half_the_rate(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate that overflows at once, and does not at a half: back to the start of the run, then to the end."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    recipe = Recipe(batch=12, epochs=3, rate=0.1, on_divergence="roll-back", checkpoint_every=4, optimizer="lars")
    rates: list[float] = []

    def fragile(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs, targets) * (float("inf") if rates and rates[-1] > 0.06 and len(rates) > 14 else 1.0)

    from rueda.train.training import Training

    with pytest.MonkeyPatch.context() as patch:
        original = Training.step

        def step(self: Training, **options: object) -> object:
            rates.append(self.schedule(self.state.clock) * self.state.rate_factor)
            return original(self, **options)  # type: ignore[arg-type]

        patch.setattr(Training, "step", step)
        more = {"rehearse": True} if kind == "rehearsed" else {}
        recipe = recipe.change(workers=2, batch=6) if kind == "rehearsed" else recipe
        result = rueda.fit(replace(tiny_task(), loss=fragile), recipe, folder=tmp_path, **more)  # type: ignore[arg-type]
    assert result.status == "finished" and result.row is not None and result.row.step == 60
    # Step 15 fails after the checkpoint of step 12, which is the one to go back to.
    assert len(rates) == 15 + 48 and rates[14] == pytest.approx(0.1) and rates[15] == pytest.approx(0.05)
    assert "diverged after update 14: back to update 12, at 0.5 times the rate (roll-back 1 of at most 3)" in (
        capsys.readouterr().err
    )
    assert [row.epoch for row in Run(tmp_path).rows("epoch")] == [1, 2, 3]
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None and found[1]["place"]["rate_factor"] == 0.5 and found[1]["place"]["num_roll_backs"] == 1


@workers(2)
def test_roll_back_is_bounded(tmp_path: Path) -> None:
    """The poisoned example is met again and again: after a few times the training ends, whole at its beginning."""
    recipe = RECIPE.change(batch=12, on_divergence="roll-back")
    result = rueda.fit(poisoned_task(), recipe, folder=tmp_path / "run", progress=False)
    assert result.status == "diverged" and result.row is not None
    current().barrier()
    assert_finite(tmp_path / "run")
    files = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert len(files) == 1 and load_checkpoint(files[0])["place"]["step"] == 0
    assert len(Run(tmp_path / "run").rows("epoch")) == 1
    with pytest.raises(RecipeError, match="needs checkpoints to go back to"):
        rueda.fit(tiny_task(), recipe, progress=False)


def test_a_rehearsal_notices_it_as_well() -> None:
    job = rehearsal(poisoned_task(), RECIPE.change(workers=4, batch=6))
    with pytest.raises(NonFiniteError, match=r"the gradient of 0\.weight"):
        for _ in range(10):
            job.step()
    assert MOST_ROLL_BACKS == 3
