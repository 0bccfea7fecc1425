"""A plan keeps its promises: the recipe runs what the table says, and the layers of the model are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rueda
from commandline import rueda as command
from plan.profiles import noise, profile, step
from rueda.measure import measure
from rueda.measure.request import Budget
from rueda.plan import choose_recipe, load_cluster, make_plan
from rueda.records import Recipe, Run
from rueda.records.plan import Plan
from tinytask import rehearsal, run

STEPS = [step(16, 0.020), step(64, 0.064), step(256, 0.220)]
LITTLE = Budget(steps=0.1, communication=0.1, together=0.1, noise=0.0, longest_step=0.5, sizes=(4, 4096))
IMAGES = """
import torch
from torch import nn

import rueda


def images(count, seed):
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=draws)
    return rueda.Arrays(torch.randn(count, 1, 6, 6, generator=draws) + labels.view(-1, 1, 1, 1), labels)


def network():
    first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(first, second, nn.Flatten(), nn.Linear(16, 2))


task = rueda.Task(
    name="images", model=network, train=lambda: images(1280, 1), test=lambda: images(64, 2),
    recipe=rueda.Recipe(batch=16, epochs=4, rate=0.05),
)
"""


def test_a_model_that_has_batch_norm_is_known_to_have_it(tmp_path: Path) -> None:
    """The factory has no argument `batch_norm`: only the built model shows its two layers."""
    (tmp_path / "images.py").write_text(IMAGES)
    found = rueda.load_task(str(tmp_path / "images.py"))
    measured = measure(found, workers=[1], batches=[8, 16], budget=LITTLE)
    assert measured.batch_norm is True
    plan = make_plan(measured, load_cluster("dgx-a100"), workers=[8])
    assert "no batch norm" not in plan.recipe + " ".join(plan.advice)
    none = measure(rueda.load_task("linear"), workers=[1], batches=[8], budget=LITTLE)
    assert none.batch_norm is False


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
@pytest.mark.parametrize("phi", [None, (60, 0.1), (300, 2.0), (5000, 2.0)])
def test_the_recipe_runs_the_updates_that_the_table_promises(phi: tuple[float, float] | None, workers: int) -> None:
    measured = profile(STEPS, noise=() if phi is None else (noise(phi[0], epochs=phi[1]),))
    plan = make_plan(measured, load_cluster("dgx-a100"), workers=[workers])
    recipe = Recipe.from_toml(plan.recipe)
    assert recipe.global_batch == plan.chosen.global_batch
    assert recipe.epochs * (plan.examples // recipe.global_batch) == plan.chosen.updates
    assert recipe.epochs == plan.chosen.epochs


def test_a_rehearsal_makes_as_many_updates_as_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rueda.measure.request.QUICK", replace(LITTLE, noise=0.5))
    (tmp_path / "images.py").write_text(IMAGES)
    assert command("measure", "images.py", "--quick", "--workers", "1", "--batches", "8,16") == 0
    assert command("plan", "--workers", "8", "--cluster", "dgx-a100", "--speed", "1") == 0
    assert command("train", "images.py", "--recipe", "planned.toml", "--rehearse", "--run", "run") == 0
    last = Run("run").rows("epoch")[-1]
    assert last.step == Plan.load("plan.json").chosen.updates


def test_workers_with_a_single_example_share_their_statistics(tmp_path: Path) -> None:
    """A batch of 16 on 16 workers: synchronised, and recalibrated on batches that have a variance."""
    (tmp_path / "images.py").write_text(IMAGES)
    task = rueda.load_task(str(tmp_path / "images.py"))
    recipe = choose_recipe(task.recipe.change(epochs=1), workers=16, local_batch=1, noise=None, examples=1280,
                           batch_norm=True).change(recalibrate="always")  # fmt: skip
    assert recipe.sync_batch_norm and recipe.scale == 1
    training = rehearsal(task, recipe)
    alone = rehearsal(task, recipe.change(workers=1, batch=16, sync_batch_norm=False))
    for one in (training, alone):
        run(one)
    for name, buffer in training.model.named_buffers():
        assert torch.allclose(buffer.float(), alone.model.get_buffer(name).float(), rtol=0.2, atol=0.2), name
