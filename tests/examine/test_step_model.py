"""A task with a step is examined as the loss that its training minimises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from anytask import TASKS, language, language_step
from rueda.data import Arrays
from rueda.examine.curvature.product import CurvatureProduct
from rueda.examine.loading import TrainedModel
from rueda.tasks import Task
from rueda.train.evaluate import evaluate
from rueda.train.loaders import evaluation_loader
from rueda.world import World
from tinytask import tiny_task, training


def examined(task: Task) -> TrainedModel:
    model = training(task, task.recipe, alone=True).model
    return TrainedModel(name=task.name, task=task, recipe=task.recipe, model=model, step=None, run=None)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "contrastive"])  # whose loss depends on the chunk
def test_the_value_is_that_of_an_evaluation(name: str) -> None:
    trained = examined(TASKS[name]())
    found = trained.objectives(num_examples=None)
    before = parameters_to_vector(trained.model.parameters()).clone()
    for split, objective in found.items():
        loader = evaluation_loader(
            trained.task.load(split), 5, World(), torch.float64, trained.task.collate
        )  # fmt: skip
        expected = evaluate(trained.task, trained.model, loader, World()).loss
        assert objective.value() == pytest.approx(expected, rel=1e-12), split
    assert next(iter(found.values())).names == [name for name, _ in trained.model.named_parameters()]
    assert torch.equal(parameters_to_vector(trained.model.parameters()), before)


def test_the_hessian_is_that_of_the_weighted_mean() -> None:
    trained = examined(language())
    parameters = list(trained.model.parameters())
    batch = language().collate([trained.task.load("train")[index] for index in range(48)])  # type: ignore[misc,index]
    losses, mask = language_step(trained.model, batch)
    loss = (losses * mask).sum() / mask.sum()
    vector = torch.randn(sum(one.numel() for one in parameters), dtype=torch.float64)
    slopes = torch.cat([one.flatten() for one in torch.autograd.grad(loss, parameters, create_graph=True)])
    expected = torch.cat([one.flatten() for one in torch.autograd.grad(slopes @ vector, parameters)])
    objective = trained.objectives(["train"], num_examples=None)["train"]
    with CurvatureProduct(objective, chunk=16) as product:
        assert (product(vector) - expected).abs().max() < 1e-12


def test_arrays_with_a_step_and_contents_in_the_fingerprint() -> None:
    def step(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    plain = tiny_task()
    task = replace(plain, step=step)
    values = [examined(one).objectives(num_examples=None)["train"].value() for one in (plain, task)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    data = plain.load("train")
    assert isinstance(data, Arrays)
    other = replace(task, train=Arrays(data.inputs + 1, data.targets))
    prints = {examined(one).objectives(["train"])["train"].fingerprint() for one in (task, task, other)}
    assert len(prints) == 2
