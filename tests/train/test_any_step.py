"""Any batch and any step: the same parameters on 1, 2 and 3 workers, rehearsed and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rueda
from anytask import TASKS, language, language_step
from anytraining import recipe_of, resumes_bit_for_bit, same_as_one_worker, trained_alone
from harness import workers
from rueda.errors import RecipeError, TaskError
from rueda.tasks import Task
from rueda.train.evaluate import Evaluator
from rueda.world import current
from tinytask import parameters, rehearsal, run, training


@pytest.mark.parametrize("name", TASKS)
@workers(2)
def test_two_workers(name: str) -> None:
    same_as_one_worker(TASKS[name]())


@pytest.mark.parametrize("name", TASKS)
@workers(3)
def test_three_workers(name: str) -> None:
    same_as_one_worker(TASKS[name]())


# Resuming.


@pytest.mark.parametrize("name", TASKS)
def test_resuming_alone(name: str, tmp_path: Path) -> None:
    resumes_bit_for_bit(TASKS[name](), tmp_path / "run")


@pytest.mark.parametrize("name", TASKS)
@workers(3)
def test_resuming_on_three_workers(name: str, tmp_path: Path) -> None:
    resumes_bit_for_bit(TASKS[name](), tmp_path / "run")


# The loss of a language model.


def expected_update(task: Task, rate: float, tokens: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """The closed form: the sum of all token losses, divided by the number of all tokens."""
    model = training(task, task.recipe, alone=True).model
    sums = [language_step(model, batch) for batch in tokens]
    loss = sum((losses * mask).sum() for losses, mask in sums) / sum(mask.sum() for _, mask in sums)
    slopes = torch.autograd.grad(loss, list(model.parameters()))  # type: ignore[arg-type]
    return parameters(model) - rate * torch.cat([slope.flatten() for slope in slopes])


ACCUMULATED = [(12, 1), (6, 2), (4, 3), (1, 12)]


@pytest.mark.parametrize(("batch", "accumulate"), ACCUMULATED)
def test_gradient_accumulation_averages_over_tokens(batch: int, accumulate: int) -> None:
    task = language()
    recipe = task.recipe.change(batch=batch, accumulate=accumulate, momentum=0.0)
    job = training(task, recipe, alone=True)
    again = training(task, recipe, alone=True)
    batches = again.next_batches()
    assert batches is not None and len(batches[0]) == accumulate
    if 1 < batch < 12:
        assert len({part.batch["tokens"].shape[1] for part in batches[0]}) > 1  # each is padded by itself
    job.step(rate=0.1)
    expected = expected_update(task, 0.1, [part.batch for part in batches[0]])
    assert (parameters(job.model) - expected).abs().max() < 1e-14


@workers(3)
def test_workers_and_accumulation_average_over_tokens() -> None:
    task = language()
    expected = trained_alone(task)
    for accumulate in (1, 2):
        recipe = task.recipe.change(workers=3, batch=4 // accumulate, accumulate=accumulate)
        assert (parameters(run(training(task, recipe)).model) - expected).abs().max() < 1e-10
        rehearsed = parameters(run(rehearsal(task, recipe)).model)
        assert (rehearsed - expected).abs().max() < 1e-10


def test_a_batch_without_weight_changes_nothing() -> None:
    def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        losses, weights = language_step(model, batch)
        return losses, torch.zeros_like(weights)

    job = training(replace(language(), step=step), language().recipe, alone=True)
    before = parameters(job.model)
    job.step()
    assert torch.equal(parameters(job.model), before)
    with pytest.raises(TaskError, match=r"weights of an evaluation: expected a sum above 0 over \d+ examples, got 0"):
        Evaluator(job).run()  # it reported a loss of 0, the best of all


# What works on gradients sees those of the weighted mean.

CHANGES: dict[str, dict[str, object]] = {
    "clipping": {"clip": 0.01},
    "LAMB": {"optimizer": "lamb", "rate": 0.01},
    "LARS": {"optimizer": "lars"},
    "Adam": {"optimizer": "adam", "rate": 0.01},
    "additive noise": {"additive_noise": 0.01},
    "static graph": {"static_graph": True},
    "skipping": {"on_divergence": "skip"},
    "averaged weights": {"ema_decay": 0.9, "base_batch": 3},
}


@pytest.mark.parametrize("change", CHANGES)
@workers(2)
def test_recipes_with_weights(change: str) -> None:
    task = language()
    expected = trained_alone(task, **CHANGES[change])
    found = parameters(run(training(task, recipe_of(task, 2, **CHANGES[change]))).model)
    assert (found - expected).abs().max() < 1e-10
    rehearsed = parameters(run(rehearsal(task, recipe_of(task, 2, **CHANGES[change]))).model)
    assert (rehearsed - found).abs().max() < 1e-12


@workers(2)
def test_adascale_with_weights() -> None:
    """The gain of rehearsed workers is that of real ones, and differs from 1."""
    task = language()
    recipe = recipe_of(task, 2, adascale=True)
    real, rehearsed = training(task, recipe), rehearsal(task, recipe)
    rates = [(real.step().rate, rehearsed.step().rate) for _ in range(6)]
    assert all(one == pytest.approx(other, rel=1e-9) and one > 0.1 for one, other in rates)
    assert (parameters(real.model) - parameters(rehearsed.model)).abs().max() < 1e-12


# Gathering, and parameters that a step does not use.


@workers(3)
def test_all_gather_keeps_the_gradient() -> None:
    """The gradient of a worker's tensor is the sum of what all workers' results contribute."""
    world = current()
    tensor = torch.full((2, 1), float(world.rank), requires_grad=True)
    parts = world.all_gather(tensor)
    assert torch.cat(parts).tolist() == [[0.0]] * 2 + [[1.0]] * 2 + [[2.0]] * 2
    sum((10**number * part).sum() * (world.rank + 1) for number, part in enumerate(parts)).backward()  # type: ignore[union-attr]
    assert tensor.grad is not None and tensor.grad.flatten().tolist() == [6.0 * 10**world.rank] * 2
    assert not world.all_gather(tensor.detach())[0].requires_grad
    rows = rueda.gather(tensor)
    assert rows.flatten().tolist() == [float((world.rank + number // 2) % 3) for number in range(6)]


@workers(2)
def test_a_step_that_leaves_parameters_out_is_one_line() -> None:
    def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["features"])["size"].square()

    job = training(replace(TASKS["several_heads"](), step=step), recipe_of(TASKS["several_heads"](), 2))
    with pytest.raises(TaskError, match=r"did not use all parameters.*requires_grad_\(False\)"):
        for _ in range(2):
            job.step()


def test_gathering_and_adascale_cannot_be_rehearsed_together() -> None:
    task = TASKS["contrastive"]()
    with pytest.raises(RecipeError, match="steps that gather are rehearsed in one graph"):
        rehearsal(task, recipe_of(task, 2, adascale=True)).step()


def test_rehearsed_workers_must_gather_alike() -> None:
    def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        rows = model(batch["first"])
        return rueda.gather(rows[: int(batch["first"][0, 0] > 0) + 1])[: len(rows)].sum(1)

    task = replace(TASKS["contrastive"](), step=step)
    with pytest.raises(TaskError, match=r"gather: expected all workers.*got '\[1, 4\] and \[2, 4\]'"):
        for _ in range(4):
            rehearsal(task, recipe_of(task, 3)).step()
