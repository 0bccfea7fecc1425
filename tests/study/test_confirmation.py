"""The short rehearsal of a plan: a recipe that holds is confirmed, one that will not is doubted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commandline import rueda, settle_in
from rueda.data import Arrays
from rueda.measure.request import Budget
from rueda.plan.choice import choose_recipe, with_cooldown
from rueda.records import Recipe
from rueda.study.confirmation import confirm, short_pair
from tinytask import tiny_task

LITTLE = Budget(steps=0.1, communication=0.1, together=0.1, noise=0.1, longest_step=0.5, sizes=(4, 4096))


def test_a_plan_that_holds_and_plans_that_do_not() -> None:
    task = tiny_task(num_train=960)
    one = with_cooldown(task.recipe.change(epochs=20))
    planned = choose_recipe(task.recipe.change(epochs=20), workers=4, local_batch=6, noise=None, examples=960)
    found = confirm(task, one, planned)
    assert found.epochs == (5, 5) and found.shares == (0.25, 0.25) and not found.on_validation
    assert found.holds and found.change is not None and abs(found.change) <= 2
    assert not confirm(task, one, planned.change(rate=1e-5, scaling="none")).holds
    lost = confirm(task, one, planned.change(rate=1e30, scaling="none"))
    assert not lost.holds


@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 8, 12, 16, 90, 300])
@pytest.mark.parametrize("ratio", [1.0, 1.25, 1.375, 1.42, 1.58, 1.9, 2.0])
def test_both_make_the_same_share_of_their_training(epochs: int, ratio: float) -> None:
    """At least a quarter of one worker's epochs, at most half; no length in that range is as short and as equal."""
    one, planned = with_cooldown(Recipe(epochs=epochs)), with_cooldown(Recipe(epochs=round(ratio * epochs)))
    short, other = short_pair(one, planned)
    few = math.ceil(epochs / 4)
    assert few <= short.epochs <= max(few, epochs // 2)

    def unequal(length: int, planned_length: int) -> float:
        return abs(math.log((planned_length / planned.epochs) / (length / epochs)))

    reached = unequal(short.epochs, other.epochs)
    for length in range(few, max(few, epochs // 2) + 1):
        best = min(unequal(length, each) for each in range(1, planned.epochs + 1))
        assert best > 0.05 if length < short.epochs else reached <= max(best, 0.05) + 1e-9
    for part, whole in ((short, one), (other, planned)):
        assert part.milestones[0] / part.epochs == pytest.approx(whole.milestones[0] / whole.epochs, rel=1e-3)


def test_validation_data_decide() -> None:
    """The test set is made of noise, so only the validation data can show that both trainings learn."""
    task = tiny_task(num_train=960)
    test = task.load("test")
    assert isinstance(test, Arrays)
    noise = Arrays(torch.randn(test.inputs.shape, generator=torch.Generator().manual_seed(1)), test.targets)
    hidden = replace(task, validation=test, test=noise)
    one = with_cooldown(task.recipe.change(epochs=20))
    planned = choose_recipe(task.recipe.change(epochs=20), workers=4, local_batch=6, noise=None, examples=960)
    by_test, by_validation = confirm(task, one, planned), confirm(hidden, one, planned)
    assert (by_test.one_worker, by_test.planned) == (by_validation.one_worker, by_validation.planned)
    assert by_validation.on_validation and not by_test.on_validation


def test_the_command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settle_in(tmp_path, monkeypatch)
    monkeypatch.setattr("rueda.measure.request.QUICK", LITTLE)
    assert rueda("measure", "clouds.py", "--quick", "--workers", "1", "--batches", "8,24") == 0
    words = ("plan", "--workers", "2", "--cluster", "dgx-a100", "--epochs", "10")
    assert rueda(*words, "--confirm", "--json") == 2
    assert "leave --confirm out" in capfd.readouterr().err
    assert rueda(*words, "--confirm") == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "confirm: test accuracy, %: one worker " in shown and "after 3 epochs, planned " in shown
    assert "one seed at 30 % of the training" in shown and "cannot tell" in shown
