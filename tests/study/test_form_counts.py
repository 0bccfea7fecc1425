"""What workers send and hold in each form, counted, equals what the formulas predict: a transformer and a CNN."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import rueda
from harness import workers
from rueda.measure.layers import layers_of_training
from rueda.plan.parallel_forms import Schedule, traffic_of, worker_memory
from rueda.records import Recipe
from rueda.records.parallelism import WorkerMemory
from rueda.records.recipe.parallel_form import mesh_of
from rueda.study.form_jobs import count_step, stage_layers
from rueda.study.form_traffic import mean_traffic
from rueda.study.parallelism import stages_of
from rueda.tasks import Task
from rueda.tasks.language import predict_next
from rueda.tasks.models import decoder, small_cnn
from rueda.train.parallel.pipeline_updater import PipelineUpdater
from rueda.train.training import Training
from rueda.world import World, current

RECIPE = Recipe(batch=8, optimizer="adamw", rate=1e-3, parallel="pipeline", micro_batches=4, recalibrate="never")


def transformer() -> Task:
    tokens = torch.randint(0, 50, (32, 17), generator=torch.Generator().manual_seed(0))
    data = rueda.Arrays(tokens[:, :-1].clone(), tokens[:, 1:].clone())
    model = partial(decoder, vocabulary=50, width=16, num_layers=3, heads=4, context=16)
    return Task(name="text", model=model, train=lambda: data, test=lambda: data, step=predict_next)


def cnn() -> Task:
    generator = torch.Generator().manual_seed(0)
    data = rueda.Arrays(torch.randn(32, 1, 12, 12, generator=generator), torch.arange(32) % 10)
    model = partial(small_cnn, image_size=12, width=7)
    return Task(name="cnn", model=model, train=lambda: data, test=lambda: data)


TASKS = {"transformer": transformer, "cnn": cnn}


def assert_as_predicted(task: Task, form: str, schedule: str = "1f1b") -> None:
    world, mesh = current(), mesh_of(form, current().size)
    alone = Training(task, RECIPE, World())
    recipe = RECIPE.change(
        workers=world.size, parallel=form, batch=RECIPE.batch // mesh.replicas, pipeline_schedule=schedule
    )
    training = Training(task, recipe, world)
    for _ in range(2):
        training.step()
    counts = world.all_gather_object(count_step(training, mesh))
    layers = layers_of_training(alone, RECIPE.batch)
    stages, micro_batches = [layers], 1
    if isinstance(training.updater, PipelineUpdater):
        stages, micro_batches = stages_of(layers, stage_layers(training)), RECIPE.micro_batches or 1
    plan = Schedule(micro_batches, is_1f1b=schedule == "1f1b")
    predicted = [
        worker_memory(
            stage, mesh, examples=recipe.batch / micro_batches, state_per_parameter=2,
            in_flight=plan.in_flight(mesh.pipeline, number) if mesh.pipeline > 1 else 1,
        )
        for number, stage in enumerate(stages)
    ]  # fmt: skip
    assert as_set(mean_traffic([one.sent for one in counts])) == as_set(
        traffic_of(stages, mesh, examples=recipe.batch)
    ), form
    measured = [counts[rank].memory for rank in range(world.size)]
    for name in ("parameters", "gradients", "optimizer", "gathered"):
        assert largest(measured, name) == largest(predicted, name), (form, name)
    assert largest(measured, "activations") == pytest.approx(largest(predicted, "activations"), rel=0.01), form


def as_set(traffic: object) -> set[object]:
    return set(traffic)  # type: ignore[call-overload]


def largest(memory: list[WorkerMemory], name: str) -> float:
    return float(max(getattr(one, name) for one in memory))


@pytest.mark.parametrize("model", TASKS)
@workers(2)
def test_two_workers(model: str) -> None:
    task = TASKS[model]()
    for form, schedule in (("sharded", ""), ("pipeline", "gpipe"), ("pipeline", "1f1b"), ("tensor", "")):
        if (model, form) != ("cnn", "tensor"):
            assert_as_predicted(task, form, schedule or "1f1b")


@workers(4)
def test_combinations() -> None:
    for form in ("data 2 x sharded 2", "data 2 x pipeline 2", "data 2 x tensor 2", "sharded 2 x tensor 2"):
        assert_as_predicted(transformer(), form)
