"""The exponential moving average of the weights, against its closed form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rueda
from rueda.errors import RecipeError
from rueda.optim import WeightAverage
from rueda.records import Recipe
from rueda.train.checkpoint import latest_checkpoint
from tinytask import parameters, run, tiny_task, training


def test_the_average_is_a_weighted_sum_of_all_weights() -> None:
    """average_n = rho^n w_0 + (1 - rho) sum_i rho^(n-i) w_i"""
    model = nn.Linear(3, 2).double()
    average, history = WeightAverage(model, decay=0.8), [parameters(model)]
    for _ in range(5):
        with torch.no_grad():
            for one in model.parameters():
                one.add_(torch.randn_like(one))
        average.update()
        history.append(parameters(model))
    expected = 0.8**5 * history[0] + sum(0.2 * 0.8 ** (5 - i) * history[i] for i in range(1, 6))
    with average.applied():
        assert (parameters(model) - expected).abs().max() < 1e-14
    assert torch.equal(parameters(model), history[-1])


@pytest.mark.parametrize("scale", [1.0, 2.0, 8.0])
def test_a_larger_batch_forgets_as_many_examples(scale: float) -> None:
    """With constant weights, one update at k times the batch moves the average as far as k updates do."""
    one, other = nn.Linear(1, 1).double(), nn.Linear(1, 1).double()
    other.load_state_dict(one.state_dict())
    together, apart = WeightAverage(one, 0.99), WeightAverage(other, 0.99)
    for model in (one, other):
        nn.init.constant_(model.weight, 3.0)
    together.update(scale)
    for _ in range(int(scale)):
        apart.update()
    assert together.state_dict()["weight"].item() == pytest.approx(apart.state_dict()["weight"].item(), rel=1e-12)


def test_evaluations_use_the_average_and_training_does_not(tmp_path: Path) -> None:
    task = tiny_task()
    plain = run(training(task, task.recipe.change(epochs=2), alone=True))
    job = training(task, task.recipe.change(epochs=2, ema_decay=0.5), alone=True)
    averaged = run(job)
    assert not torch.equal(parameters(averaged.model), parameters(plain.model))
    assert averaged.row is not None and plain.row is not None
    assert averaged.row.train_loss == plain.row.train_loss and averaged.row.test_loss != plain.row.test_loss
    assert job.average is not None
    job.average.swap()  # the result holds the average; the training went on with its own weights
    assert torch.equal(parameters(job.model), parameters(plain.model))


def test_checkpoints_keep_weights_and_average(tmp_path: Path) -> None:
    task = tiny_task()
    recipe = task.recipe.change(epochs=2, ema_decay=0.9, checkpoint_every=3, keep=99)
    whole = rueda.fit(task, recipe, folder=tmp_path / "run", progress=False)
    resumed = rueda.fit(task, recipe, folder=tmp_path / "run", resume=True, resume_from=3, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))
    found = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found is not None
    name, weight = next(iter(whole.model.named_parameters()))
    assert torch.equal(found[1]["average"][name], weight) and not torch.equal(found[1]["model"][name], weight)


def test_a_training_without_an_average_can_get_one(tmp_path: Path) -> None:
    task = tiny_task()
    rueda.fit(task, task.recipe.change(epochs=1), folder=tmp_path / "run", progress=False)
    recipe = task.recipe.change(epochs=2, ema_decay=0.9)
    assert rueda.fit(task, recipe, folder=tmp_path / "run", resume=True, progress=False).status == "finished"


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 1.5])
def test_a_decay_lies_between_0_and_1(decay: float) -> None:
    with pytest.raises(RecipeError, match="ema_decay"):
        Recipe(ema_decay=decay)
    with pytest.raises(RecipeError, match="ema_decay"):
        WeightAverage(nn.Linear(1, 1), decay)
