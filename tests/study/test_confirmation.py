"""The short rehearsal of a plan: a recipe that holds is confirmed, one that will not is doubted."""

from __future__ import annotations

from pathlib import Path

import pytest

from commandline import rueda, settle_in
from rueda.measure.request import Budget
from rueda.plan.choice import choose_recipe, with_cooldown
from rueda.study.confirmation import confirm
from tinytask import tiny_task

LITTLE = Budget(steps=0.1, communication=0.1, together=0.1, noise=0.1, longest_step=0.5, sizes=(4, 4096))


def test_a_plan_that_holds_and_plans_that_do_not() -> None:
    task = tiny_task(num_train=960)
    one = with_cooldown(task.recipe.change(epochs=20))
    planned = choose_recipe(task.recipe.change(epochs=20), workers=4, local_batch=6, noise=None, examples=960)
    found = confirm(task, one, planned)
    assert found.epochs == (2, 2) and found.holds and found.change is not None and abs(found.change) <= 3
    assert not confirm(task, one, planned.change(rate=1e-5, scaling="none")).holds
    lost = confirm(task, one, planned.change(rate=1e30, scaling="none"))
    assert not lost.holds


def test_the_command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settle_in(tmp_path, monkeypatch)
    monkeypatch.setattr("rueda.measure.request.QUICK", LITTLE)
    assert rueda("measure", "clouds.py", "--quick", "--workers", "1", "--batches", "8,24") == 0
    words = ("plan", "--workers", "2", "--cluster", "dgx-a100", "--epochs", "10")
    assert rueda(*words, "--confirm", "--json") == 2
    assert "leave --confirm out" in capfd.readouterr().err
    assert rueda(*words, "--confirm") == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "confirm: accuracy, %: one worker " in shown and "after 1 epoch, planned " in shown
