"""Sharded and tensor-parallel updates give the parameters and the optimizer state of one worker."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

import rueda
from everyform import every_or
from harness import workers
from rueda.optim.engine.lanes import local
from rueda.records import Recipe
from rueda.records.recipe.parallel_form import mesh_of
from rueda.tasks import models
from rueda.tasks.language import predict_next
from rueda.tasks.task import Task
from rueda.train.divergence import FiniteTest
from rueda.train.micro_batches import MicroBatch
from rueda.train.optimizers import build_optimizer
from rueda.train.parallel.dividing import divided_updater
from rueda.train.parallel.division import data_place, in_mesh
from rueda.train.parallel.whole_state import IMPLEMENTATION
from rueda.train.step_module import StepModule
from rueda.train.update import Updater
from rueda.world import World, current

EXAMPLES = 16
STEPS = 20
DTYPES = [torch.float32, torch.float64]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "rate": 3e-3, "weight_decay": 0.1, "clip": 0.5},
    "lamb": {"optimizer": "lamb", "rate": 1e-2, "weight_decay": 0.01},
    "lars": {"optimizer": "lars", "rate": 0.1, "weight_decay": 1e-4, "clip": 1.0},
    "larc": {"optimizer": "larc", "rate": 0.1, "weight_decay": 1e-4},
    "novograd": {"optimizer": "novograd", "rate": 1e-2, "weight_decay": 1e-4},
    "sgd": {"optimizer": "sgd", "rate": 0.1, "momentum": 0.9, "clip": 0.5},
}


def no_data() -> rueda.Arrays:
    raise AssertionError("not loaded")


def cnn_task() -> Task:
    """Return a CNN with a pair of linear layers behind it, of odd widths."""
    model = partial(models.PairEncoder, width=3, features=10)
    return Task(name="cnn", model=model, train=no_data, test=no_data)


def text_task(dropout: float = 0.0) -> Task:
    model = partial(models.decoder, vocabulary=33, width=16, num_layers=2, heads=2, context=8, dropout=dropout)
    return Task(name="text", model=model, train=no_data, test=no_data, step=predict_next)


TASKS = {"cnn": cnn_task, "text": text_task, "text with dropout": partial(text_task, dropout=0.2)}


def batch_of(task: Task, step: int, dtype: torch.dtype) -> Any:
    generator = torch.Generator().manual_seed(step)
    if task.name == "text":
        tokens = torch.randint(0, 33, (EXAMPLES, 9), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    images = torch.randn(EXAMPLES, 1, 12, 12, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.randint(0, 10, (EXAMPLES,), generator=generator)


def cut(batch: Any, start: int, size: int) -> MicroBatch:
    return MicroBatch(tuple(one[start : start + size] for one in batch), size)


def one_worker(task: Task, recipe: Recipe, dtype: torch.dtype) -> Updater:
    torch.manual_seed(0)
    model = task.model().to(dtype)
    updater = Updater(task, recipe, World(), model, StepModule(task, model), build_optimizer(recipe, model), {})
    for step in range(STEPS):
        updater.begin(step)
        updater.update([[cut(batch_of(task, step, dtype), 0, EXAMPLES)]], rate=recipe.rate, step=step)
    return updater


def divided(task: Task, recipe: Recipe, dtype: torch.dtype, parts: int) -> Updater:
    world = current()
    mesh = mesh_of(recipe.parallel, world.size)
    place = data_place(world, mesh)
    torch.manual_seed(0)
    model = task.model().to(dtype)
    updater = divided_updater(task, in_mesh(recipe, mesh), world, model, mesh, torch.contiguous_format)
    share = EXAMPLES // place.size
    size = share // parts
    for step in range(STEPS):
        whole = batch_of(task, step, dtype)
        starts = range(place.rank * share, (place.rank + 1) * share, size)
        own = [cut(whole, start, size) for start in starts]
        updater.begin(step)
        updater.update([own], rate=recipe.rate, step=step, num_examples=EXAMPLES)
    return updater


def close(found: Any, wanted: Any, tolerance: float, where: str = "state") -> None:
    if isinstance(wanted, torch.Tensor):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype, where
        difference = (found.double() - wanted.double()).abs().max().item()
        assert difference <= tolerance * max(1.0, wanted.double().abs().max().item()), (where, difference)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), (where, found.keys() ^ wanted.keys())
        for key in wanted:
            close(found[key], wanted[key], tolerance, f"{where}.{key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), where
        for index, one in enumerate(wanted):
            close(found[index], one, tolerance, f"{where}[{index}]")
    elif isinstance(wanted, float):
        assert abs(float(found) - wanted) <= tolerance * max(1.0, abs(wanted)), (where, found, wanted)
    else:
        assert found == wanted, (where, found, wanted)


def without_implementation(state: dict[str, Any]) -> dict[str, Any]:
    groups = [
        {key: value for key, value in each.items() if key not in IMPLEMENTATION} for each in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


def equal_to_one_worker(
    form: str, name: str, optimizer: str, dtype: torch.dtype, parts: int = 1, recomputes: bool = False
) -> None:
    options = {**OPTIMIZERS[optimizer], "activation_checkpointing": recomputes}
    task, recipe = TASKS[name](), Recipe(batch=EXAMPLES, parallel=form, **options)
    updater, alone = divided(task, recipe, dtype, parts), one_worker(task, recipe, dtype)
    wanted_optimizer = without_implementation(alone.optimizer.state_dict())
    state, of_optimizer = updater.model_state(), updater.optimizer_state()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    is_main = current().is_main
    if form == "sharded":
        assert_divided(updater)
    if is_main:
        close(state, alone.model.state_dict(), tolerance, f"{form}: model")
        close(without_implementation(of_optimizer), wanted_optimizer, tolerance, f"{form}: {optimizer}")
    sums, wanted = updater.totals.sums_over(current()), alone.totals.sums_over(World())
    close(torch.tensor(sums["loss"]), torch.tensor(wanted["loss"]), 1e-5, "loss")
    # And back: one worker's state, divided.
    updater.load_model_state(alone.model.state_dict())
    updater.optimizer.load_state_dict(updater.own_optimizer_state(alone.optimizer.state_dict()))
    state, of_optimizer = updater.model_state(), updater.optimizer_state()
    if is_main:
        close(state, alone.model.state_dict(), 0.0, "model, loaded")
        close(without_implementation(of_optimizer), wanted_optimizer, 0.0, f"{optimizer}, loaded")


def assert_divided(updater: Updater) -> None:
    """Check that a worker of two holds half of the parameters and of the optimizer's state, and a row more at most."""
    states = [
        value for state in updater.optimizer.state.values() for value in state.values() if hasattr(value, "shape")
    ]
    for tensors in (list(updater.model.parameters()), [one for one in states if one.dim() > 0]):
        held, whole = sum(local(one).numel() for one in tensors), sum(one.numel() for one in tensors)
        rows = sum(one[0].numel() for one in tensors)
        assert abs(held - whole / 2) <= rows, (held, whole)


@workers(2)
def test_a_gradient_that_is_not_finite_is_seen_by_all() -> None:
    for form in ("sharded", "tensor"):
        with pytest.raises(rueda.errors.NonFiniteError):
            divided(cnn_task(), Recipe(batch=EXAMPLES, parallel=form, rate=1e30), torch.float32, 1)


@workers(2)
def test_a_part_that_is_not_finite_is_seen_by_workers_with_other_parts() -> None:
    device = torch.device("cpu")
    for value, is_finite in ((1.0, True), (torch.nan, False), (torch.inf, False)):
        model = torch.nn.Linear(2, 2)
        test = FiniteTest(model)
        if current().rank == 1:
            model.bias.grad = torch.full((2,), value)
        assert math.isfinite(test.sum_over(None, device)) == is_finite, value
        model.bias.grad = None  # its next update has no gradients here, and must meet the others all the same
        assert test.sum_over(None, device) == 0


@workers(2)
def test_sharded_on_two_workers() -> None:
    few = [
        ("cnn", "adamw", torch.float32, 1),
        ("cnn", "lars", torch.float64, 2),
        ("text", "lamb", torch.float64, 1),
        ("cnn", "larc", torch.float64, 1),
        ("cnn", "novograd", torch.float64, 1),
    ]
    for name, optimizer, dtype, parts in every_or(few, ["cnn", "text"], OPTIMIZERS, DTYPES, [1, 2]):
        equal_to_one_worker("sharded", name, optimizer, dtype, parts)


@workers(2)
def test_divided_models_with_activation_checkpointing_on_two_workers() -> None:
    for form, name, parts in (("sharded", "text", 2), ("sharded", "cnn", 1), ("tensor", "text", 1)):
        equal_to_one_worker(form, name, "adamw", torch.float64, parts, recomputes=True)


@workers(2)
def test_tensor_on_two_workers() -> None:
    few = [
        ("cnn", "lars", torch.float32, 1),
        ("text with dropout", "adamw", torch.float32, 1),  # the workers draw the same numbers
        ("text", "lamb", torch.float64, 2),
        ("cnn", "sgd", torch.float64, 2),
    ]
    for name, optimizer, dtype, parts in every_or(few, ["cnn", "text"], OPTIMIZERS, DTYPES, [1, 2]):
        equal_to_one_worker("tensor", name, optimizer, dtype, parts)


@workers(4)
def test_combinations_on_four_workers() -> None:
    few = [
        ("data 2 x tensor 2", "text", "lamb", torch.float64, 1),
        ("data 2 x tensor 2", "cnn", "lars", torch.float32, 2),
        ("sharded 2 x tensor 2", "text", "lars", torch.float64, 2),
        ("sharded 2 x tensor 2", "cnn", "adamw", torch.float32, 1),
        ("data 2 x sharded 2", "cnn", "lamb", torch.float64, 1),
    ]
    forms = ["data 2 x tensor 2", "sharded 2 x tensor 2", "data 2 x sharded 2"]
    for form, name, optimizer, dtype, parts in every_or(few, forms, ["cnn", "text"], OPTIMIZERS, DTYPES, [1]):
        equal_to_one_worker(form, name, optimizer, dtype, parts)
