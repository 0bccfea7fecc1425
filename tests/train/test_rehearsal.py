"""Rehearsal: N virtual workers give the numbers of N real ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.nn import sync_batch_norm
from rueda.optim import AdaScale
from rueda.records import Recipe
from rueda.tasks.task import Task
from rueda.train import rehearsal as module
from rueda.world import World, current
from tinytask import clouds, parameters, rehearsal, tiny_task, training

BASE = Recipe(batch=12, epochs=4, rate=0.05, model={"batch_norm": True, "dropout": 0.3}, recalibrate="never")
CASES = {
    "batch norm and dropout": BASE,
    "LAMB": BASE.change(optimizer="lamb", rate=0.01),
    "gradient noise": BASE.change(gradient_noise=1.0),
    "batch growth": BASE.change(growth_factor=2.0, milestones=(2.0,), largest_batch=96),
    "accumulation": BASE.change(batch=6, accumulate=2),
    "ghost batch norm": BASE.change(ghost_batch=4),
    "synchronised batch norm": BASE.change(sync_batch_norm=True),
    "AdaScale": BASE.change(adascale=True),
    "clipping": BASE.change(clip=0.1),
}


def compare(recipe: Recipe, precision: str, bound: float) -> None:
    """20 steps on 4 real workers, and on 4 rehearsed ones."""
    recipe = recipe.change(workers=4, precision=precision)
    task = tiny_task(480)
    real = training(task, recipe)
    real.run_all()
    if current().is_main:
        with pytest.MonkeyPatch.context() as patch:  # a rehearsal is alone; here the others stand beside it
            patch.setattr(sync_batch_norm, "current", World)
            virtual = rehearsal(task, recipe)
            virtual.run_all()
        assert virtual.place.step == real.place.step >= 20
        difference = float((parameters(virtual.model) - parameters(real.model)).abs().max())
        assert difference <= bound, f"{precision}: {difference}"
        for name, buffer in real.model.named_buffers():
            other = virtual.model.get_buffer(name)
            assert torch.allclose(other.double(), buffer.double(), rtol=10 * bound, atol=10 * bound), name
        if isinstance(real.optimizer, AdaScale):
            assert virtual.place.clock == pytest.approx(real.place.clock, rel=1e-4)
    current().barrier()


@pytest.mark.parametrize("at_once", [1, 64], ids=["one by one", "together"])
@pytest.mark.parametrize("name", CASES)
@workers(4)
def test_four_rehearsed_workers_equal_four_real_ones(name: str, at_once: int) -> None:
    before, module.GROUP_EXAMPLES = module.GROUP_EXAMPLES, at_once
    try:
        compare(CASES[name], "float64", 1e-12)
        compare(CASES[name], "float32", 1e-5)
    finally:
        module.GROUP_EXAMPLES = before


def test_many_virtual_workers_with_small_batches() -> None:
    recipe = Recipe(workers=64, batch=4, epochs=4, rate=0.05, model={"batch_norm": True, "dropout": 0.1})
    rows = rehearsal(tiny_task(1024), recipe).run_all()
    assert rows.row is not None and rows.row.global_batch == 256 and rows.row.step == 16 and rows.row.rehearsed


def test_dropout_of_a_convolutional_model_in_groups() -> None:
    """Feature dropout and images: taken together or one by one, the same parameters."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Dropout2d(0.3), nn.Flatten(),
            nn.Dropout(0.3), nn.Linear(32, 3),
        )  # fmt: skip

    task = Task(name="images", model=model, train=lambda: clouds(240, 1), test=lambda: clouds(20, 2))
    recipe = Recipe(workers=5, batch=8, epochs=2, precision="float64")
    results = []
    for at_once in (1, 24, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "GROUP_EXAMPLES", at_once)
            results.append(parameters(rehearsal(task, recipe).run_all().model))
    assert torch.allclose(results[0], results[1], rtol=1e-12, atol=1e-14)
    assert torch.allclose(results[0], results[2], rtol=1e-12, atol=1e-14)


def test_one_rehearsed_worker_is_one_worker() -> None:
    recipe = BASE.change(precision="float64")
    one, rehearsed = training(tiny_task(), recipe).run_all(), rehearsal(tiny_task(), recipe).run_all()
    assert torch.equal(parameters(one.model), parameters(rehearsed.model))


def test_resume_and_record(tmp_path) -> None:  # type: ignore[no-untyped-def]
    recipe = BASE.change(workers=4)
    whole = rueda.fit(tiny_task(), recipe, rehearse=True, progress=False)
    rueda.fit(tiny_task(), recipe.change(epochs=2), rehearse=True, folder=tmp_path, progress=False)
    resumed = rueda.fit(tiny_task(), recipe, rehearse=True, folder=tmp_path, resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))
    run = rueda.Run(tmp_path)
    assert run.environment()["rehearsed"] is True and all(row["rehearsed"] for row in run.rows())
    assert run.recipe().workers == 4


@workers(2)
def test_a_rehearsal_is_one_process() -> None:
    with pytest.raises(RecipeError, match="a rehearsal is one process, but 2 workers run"):
        rueda.fit(tiny_task(), BASE, rehearse=True, progress=False)
    assert World().size == 1
