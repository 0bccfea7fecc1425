"""A pipeline gives the parameters and the optimizer state of one worker, with each schedule and optimizer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import rueda
from everyform import every_or
from harness import workers
from rueda.errors import RecipeError, TaskError
from rueda.records import Recipe
from rueda.records.recipe.parallel_form import Mesh
from rueda.tasks import models
from rueda.tasks.language import predict_next
from rueda.tasks.step import Losses
from rueda.tasks.task import Task
from rueda.train.activation_checkpointing import segments_of
from rueda.train.counting import SavedTensors
from rueda.train.micro_batches import MicroBatch
from rueda.train.optimizers import build_optimizer
from rueda.train.parallel.building import build_pipeline_updater, pipeline_groups
from rueda.train.parallel.pipeline import Pipeline, fitting_micro_batches
from rueda.train.parallel.pipeline_updater import PipelineUpdater
from rueda.train.parallel.refusals import REFUSED, check_form
from rueda.train.parallel.stages import Stage, is_kept, layers_of
from rueda.train.parallel.whole_state import (
    gather_model_state,
    gather_optimizer_state,
    load_model_state,
    own_optimizer_state,
)
from rueda.train.step_module import StepModule
from rueda.train.update import Updater
from rueda.world import World, current

EXAMPLES = 16
STEPS = 20
DTYPES = [torch.float32, torch.float64]
SCHEDULES = ["gpipe", "1f1b", "interleaved"]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "rate": 3e-3, "weight_decay": 0.1, "clip": 0.5},
    "lamb": {"optimizer": "lamb", "rate": 1e-2, "weight_decay": 0.01},
    "lars": {"optimizer": "lars", "rate": 0.1, "weight_decay": 1e-4, "clip": 1.0},
}


def no_data() -> rueda.Arrays:
    raise AssertionError("not loaded")


def cnn_task(**options: Any) -> Task:
    model = partial(models.small_cnn, image_size=8, width=4, **options)
    return Task(name="cnn", model=model, train=no_data, test=no_data)


def text_task() -> Task:
    model = partial(models.decoder, vocabulary=32, width=16, num_layers=3, heads=2, context=8)
    return Task(name="text", model=model, train=no_data, test=no_data, step=predict_next)


TASKS = {"cnn": cnn_task, "text": text_task}


def batch_of(task: Task, step: int, dtype: torch.dtype, num_examples: int = EXAMPLES) -> Any:
    generator = torch.Generator().manual_seed(step)
    if task.name == "text":
        tokens = torch.randint(0, 32, (num_examples, 9), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    images = torch.randn(num_examples, 1, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.randint(0, 10, (num_examples,), generator=generator)


def whole_model(task: Task, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return task.model().to(dtype)


def one_worker(task: Task, recipe: Recipe, dtype: torch.dtype, parts: int = 1) -> tuple[Updater, nn.Module]:
    """Train on one worker, with the batch in so many micro-batches."""
    model = whole_model(task, dtype)
    updater = Updater(task, recipe, World(), model, StepModule(task, model), build_optimizer(recipe, model), {})
    for step in range(STEPS):
        batch = batch_of(task, step, dtype)
        size = EXAMPLES // parts
        divided = [tuple(one[start : start + size] for one in batch) for start in range(0, EXAMPLES, size)]
        updater.update([[MicroBatch(part, size) for part in divided]], rate=recipe.rate, step=step)
    return updater, model


def in_pipeline(
    task: Task, recipe: Recipe, dtype: torch.dtype, num_pipelines: int = 1
) -> tuple[PipelineUpdater, nn.Module, Any]:
    world = current()
    groups = pipeline_groups(world, Mesh(data=num_pipelines, pipeline=world.size // num_pipelines))
    model = whole_model(task, dtype)
    share = EXAMPLES // num_pipelines
    place = world.rank // (world.size // num_pipelines) * share
    sample = MicroBatch(batch_of(task, 0, dtype), EXAMPLES)
    updater = build_pipeline_updater(task, recipe, world, model, sample, groups)
    for step in range(STEPS):
        own = tuple(one[place : place + share] for one in batch_of(task, step, dtype))
        updater.update([[MicroBatch(own, share)]], rate=recipe.rate, step=step, num_examples=EXAMPLES)
    return updater, model, groups


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
    else:
        assert found == wanted, (where, found, wanted)


def equal_to_one_worker(task: Task, recipe: Recipe, dtype: torch.dtype, num_pipelines: int = 1, parts: int = 1) -> None:
    updater, model, groups = in_pipeline(task, recipe, dtype, num_pipelines)
    assert 0 < sum(is_kept(one) for one in model.parameters()) < len(list(model.parameters()))
    updater.synchronize_buffers()
    state = gather_model_state(model, groups.pipeline)
    optimizer = gather_optimizer_state(model, updater.optimizer, groups.pipeline)
    alone, reference = one_worker(task, recipe, dtype, parts)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    if state:
        close(state, reference.state_dict(), tolerance, "model")
        close(optimizer, alone.optimizer.state_dict(), tolerance, "optimizer")
    sums, wanted = updater.totals.sums_over(current()), alone.totals.sums_over(World())
    close(torch.tensor(sums["loss"]), torch.tensor(wanted["loss"]), 1e-5, "loss")
    # And back: one worker's state, divided.
    load_model_state(model, reference.state_dict())
    divided = own_optimizer_state(model, updater.optimizer, alone.optimizer.state_dict())
    updater.optimizer.load_state_dict(divided)
    again = gather_optimizer_state(model, updater.optimizer, groups.pipeline)
    if again:
        close(again, alone.optimizer.state_dict(), 0.0, "optimizer, loaded")


@workers(2)
def test_every_schedule_and_optimizer_on_two_workers() -> None:
    few = [
        ("cnn", "gpipe", "adamw", torch.float32),
        ("cnn", "1f1b", "lars", torch.float64),
        ("cnn", "interleaved", "lamb", torch.float64),
        ("text", "gpipe", "lamb", torch.float32),
        ("text", "1f1b", "adamw", torch.float64),
        ("text", "interleaved", "lars", torch.float64),
        ("text", "interleaved", "adamw", torch.float32),
    ]
    for name, schedule, optimizer, dtype in every_or(few, TASKS, SCHEDULES, OPTIMIZERS, DTYPES):
        recipe = Recipe(
            batch=EXAMPLES, parallel="pipeline", pipeline_schedule=schedule, micro_batches=4, **OPTIMIZERS[optimizer]
        )
        equal_to_one_worker(TASKS[name](), recipe, dtype)


@workers(4)
def test_two_pipelines_beside_each_other() -> None:
    few = [
        ("cnn", "gpipe", "lars", torch.float32),
        ("text", "1f1b", "adamw", torch.float64),
        ("text", "interleaved", "lamb", torch.float64),
    ]
    for name, schedule, optimizer, dtype in every_or(few, TASKS, SCHEDULES, OPTIMIZERS, DTYPES):
        recipe = Recipe(
            batch=EXAMPLES, parallel="pipeline", pipeline_schedule=schedule, micro_batches=4, **OPTIMIZERS[optimizer]
        )
        equal_to_one_worker(TASKS[name](), recipe, dtype, num_pipelines=2)


@workers(2)
def test_batch_norm_sees_micro_batches() -> None:
    recipe = Recipe(
        batch=EXAMPLES, parallel="pipeline", pipeline_schedule="1f1b", micro_batches=4, **OPTIMIZERS["adamw"]
    )
    equal_to_one_worker(cnn_task(batch_norm=True), recipe, torch.float64, parts=4)


@workers(2)
def test_activation_checkpointing_in_every_schedule() -> None:
    for task, schedule, parts in (
        (cnn_task(batch_norm=True), "gpipe", 4),
        (cnn_task(batch_norm=True), "1f1b", 4),
        (text_task(), "1f1b", 1),
        (text_task(), "interleaved", 1),
    ):
        recipe = Recipe(
            batch=EXAMPLES, parallel="pipeline", pipeline_schedule=schedule, micro_batches=4,
            activation_checkpointing=True, **OPTIMIZERS["adamw"],
        )  # fmt: skip
        equal_to_one_worker(task, recipe, torch.float64, parts=parts)


def test_a_stage_that_is_computed_again_keeps_less_and_draws_the_same_numbers() -> None:
    layers = [layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3))]
    found: list[tuple[int, list[torch.Tensor]]] = []
    for kept in (Stage(layers), copy.deepcopy(Stage(layers))):
        if found:
            kept.segments = segments_of(list(kept.layers), one_by_one=False)
        torch.manual_seed(1)
        saved = SavedTensors([*kept.parameters(), *kept.buffers()])
        with saved.hooks():
            outputs = [kept(torch.randn(64, 32)) for _ in range(2)]  # micro-batches on their way
        for one in outputs:
            one.square().mean().backward()
        numbers = [one.grad for one in kept.parameters() if one.grad is not None]
        found.append((saved.num_bytes, [*numbers, *kept.buffers(), torch.rand(1)]))
    assert found[1][0] < 0.35 * found[0][0]
    close(found[1][1], found[0][1], 0.0)


@workers(2)
def test_losses_without_gradients() -> None:
    for name, schedule in (("cnn", "1f1b"), ("text", "interleaved")):
        task = TASKS[name]()
        recipe = Recipe(batch=EXAMPLES, parallel="pipeline", pipeline_schedule=schedule, micro_batches=4)
        updater, model, groups = in_pipeline(task, recipe, torch.float64)
        state = gather_model_state(model, groups.pipeline)
        model.eval()
        for count in (16, 6, 1) if schedule == "1f1b" else (16, 8):
            batch = batch_of(task, 99, torch.float64, count)
            found = updater.losses(model, batch, count)
            total = torch.tensor([sum(float(result.total()) for result, _, _ in found)], dtype=torch.float64)
            dist.all_reduce(total)
            if state:
                reference = whole_model(task, torch.float64).eval()
                reference.load_state_dict(state)
                wanted = task.run_step(reference, batch).total().item()
                assert total.item() == pytest.approx(wanted, rel=1e-12), (name, count, total.item(), wanted)
        assert all(parameter.grad is None for parameter in model.parameters())


@workers(2)
def test_a_gradient_that_is_not_finite_is_seen_by_all_stages() -> None:
    recipe = Recipe(batch=EXAMPLES, parallel="pipeline", micro_batches=4, rate=1e30)
    with pytest.raises(rueda.errors.NonFiniteError):
        in_pipeline(cnn_task(), recipe, torch.float32)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)


def test_which_models_have_layers() -> None:
    assert len(layers_of(models.decoder(num_layers=3))) == 5
    assert len(layers_of(models.vision_transformer(num_layers=3))) == 5
    assert len(layers_of(models.resnet(8))) == 9
    assert len(layers_of(Own(), lambda model: [model.a, model.b])) == 2
    with pytest.raises(TaskError, match=r"expected an nn.Sequential.*got 'Own'; give the task its layers"):
        layers_of(Own())
    with pytest.raises(TaskError, match=r"none with b.weight"):
        layers_of(Own(), lambda model: [model.a])


def test_layers_compute_what_the_model_does() -> None:
    images = torch.randn(2, 1, 28, 28)
    tokens = torch.randint(0, 256, (2, 64))
    for model, inputs in ((models.vision_transformer(), images), (models.decoder(), tokens)):
        value = inputs
        for layer in layers_of(model):
            value = layer(value)
        assert torch.equal(value, model(inputs))


def test_micro_batches_that_fit() -> None:
    assert fitting_micro_batches("gpipe", 4, 8, 6) == 6
    assert fitting_micro_batches("interleaved", 3, 8, 28) == 4  # 7 micro-batches make no two equal rounds
    with pytest.raises(RecipeError, match="expected a batch that 2 to 4 equal micro-batches"):
        fitting_micro_batches("1f1b", 2, 4, 7)


ASKED: dict[str, dict[str, Any]] = {
    "adascale": {"adascale": True},
    "noise_scale_every": {"noise_scale_every": 2},
    "additive_noise": {"additive_noise": 0.1},
    "compile": {"compile": True},
    "precision = fp16": {"precision": "fp16"},
    "on_divergence = skip": {"on_divergence": "skip"},
    "ema_decay": {"ema_decay": 0.9},
    "recalibrate = always": {"recalibrate": "always"},
    "a rehearsal": {},
}


@pytest.mark.parametrize("name", ASKED)
def test_what_the_forms_refuse(name: str) -> None:
    kinds, _ = REFUSED[name]
    for mesh in (Mesh(data=4), Mesh(sharded=4), Mesh(pipeline=4), Mesh(tensor=4), Mesh(data=2, sharded=2)):
        recipe = Recipe(parallel=mesh.form, **ASKED[name])
        if set(kinds) & set(mesh.kinds):
            with pytest.raises(RecipeError, match=rf"{name} .* does not go with parallel = '{mesh.form}'"):
                check_form(cnn_task(), recipe, mesh, rehearse=name == "a rehearsal")
        else:
            check_form(cnn_task(), recipe, mesh, rehearse=name == "a rehearsal")


class Refusing(nn.Module):
    """A layer that cannot take its second input; the first one is that of the pass that finds the shapes."""

    num_calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls == 1:
            return inputs
        raise TaskError("a layer", expected="another input", got="this one", do="change it")


@workers(2)
def test_the_error_of_a_layer_is_raised_as_it_was() -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]  # a pipeline of one worker each: nobody waits for the other
    task = Task(name="refusing", model=nn.Identity, train=no_data, test=no_data)
    pipeline = Pipeline(
        task, [Stage([nn.Linear(4, 3), Refusing()])], schedule="gpipe", micro_batches=2, group=groups[dist.get_rank()],
        device=torch.device("cpu"),
    )  # fmt: skip
    with pytest.raises(TaskError, match="a layer: expected another input"):
        pipeline.accumulate_gradients((torch.ones(4, 4), torch.zeros(4, dtype=torch.long)), 4, weighed)


def weighed(result: Losses, start: int, count: int) -> torch.Tensor:
    return result.total()
