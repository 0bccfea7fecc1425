"""The parts of ``rueda parallelism`` that run in worker processes: one worker alone, then all workers in one form.

Gradients go through torch.distributed (``RUEDA_TRANSPORT=gloo``), since the shared memory of one host, which would
average them otherwise, sends nothing that could be compared with the bytes of a network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rueda.measure.communication import measure_communication
from rueda.measure.layers import layers_of_training
from rueda.measure.memory import peak_bytes, reset_peak
from rueda.measure.pipeline_idle import measure_idle
from rueda.measure.spread import median_and_spread
from rueda.measure.step_meter import describe
from rueda.measure.steps import Stepper, measure_steps
from rueda.measure.work import work_of
from rueda.measure.worker_tensors import StepTensors, state_of_worker
from rueda.records import Recipe
from rueda.records.parallelism import Traffic, WorkerMemory
from rueda.records.profile import Communication, Profile
from rueda.records.recipe.parallel_form import PIPELINES_ALONE, Mesh, has_pipeline
from rueda.records.recipe.values import parse_setting
from rueda.records.throughput import counted_unit
from rueda.study.form_traffic import Sent, counted, mean_traffic, sent
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.train.parallel.pipeline_updater import PipelineUpdater
from rueda.train.training import Training
from rueda.world import World, open_world
from rueda.world.device import wait_for
from rueda.world.shared_memory.transport import TRANSPORT

_REFERENCE = "one-worker.pt"
_BLOCKS, _BLOCK_STEPS = 9, 3


@dataclass(frozen=True, kw_only=True)
class FormRequest:
    """One training to measure."""

    task: str
    settings: tuple[str, ...]
    workers: int
    """workers that share the global batch of one worker's recipe"""
    mesh: tuple[int, int, int, int] = Mesh()
    """the form: :class:`rueda.records.recipe.parallel_form.Mesh`"""
    num_steps: int
    folder: Path
    """where the parameters of one worker are kept"""


@dataclass(frozen=True, kw_only=True)
class OneWorkerAnswer:
    """What one worker alone showed."""

    profile: Profile
    global_batch: int
    precision: str


@dataclass(frozen=True, kw_only=True)
class FormAnswer:
    """What all workers in one form showed."""

    traffic: tuple[Traffic, ...]
    memory: WorkerMemory
    peak_bytes: float | None
    images_per_second: float
    spread: float
    difference: float
    idle: float | None = None
    schedule_idle: float | None = None
    micro_batches: int = 1
    is_1f1b: bool = True
    stage_layers: tuple[int, ...] = ()
    """of each stage of a pipeline, the number of its layers"""
    communication: Communication | None = None
    """measured with data parallelism only"""


def one_worker(request: FormRequest) -> OneWorkerAnswer:
    """Train one worker for some steps and keep its parameters; measure its step and count its layers."""
    task = load_task_and_data(request.task)
    recipe = recipe_of(task, request.settings, Mesh(), workers=request.workers)
    world = World(device=open_world().device)
    training = _trained(task, recipe, world, request.num_steps)
    torch.save([one.detach().cpu() for one in training.model.parameters()], request.folder / _REFERENCE)
    stepper = Stepper(task, recipe, world)
    batches = sorted({max(1, recipe.batch // request.workers), recipe.batch})
    steps, largest = measure_steps(stepper, batches, seconds=1.0, all_of_them=True)
    profile = describe(
        stepper.training.model, world.device, task=task.name, examples=stepper.num_examples, steps=steps, recipe=recipe,
        largest=largest, work=work_of(stepper.training, recipe.batch), task_file=task.file,
        layers=layers_of_training(stepper.training, recipe.batch), unit=counted_unit(task.unit),
    )  # fmt: skip
    return OneWorkerAnswer(profile=profile, global_batch=recipe.batch, precision=training.recipe.precision)


def one_form(request: FormRequest) -> FormAnswer:
    """Train all workers in one form and measure it; every worker must call this.

    Raises:
        RuedaError: the task or the recipe cannot have this form.
    """
    os.environ[TRANSPORT] = "gloo"
    task, world, mesh = load_task_and_data(request.task), open_world(), Mesh(*request.mesh)
    recipe = recipe_of(task, request.settings, mesh, workers=request.workers).change(workers=world.size)
    reset_peak(world.device)
    before = peak_bytes(world.device)
    training = _trained(task, recipe, world, request.num_steps)
    apart = _difference(training, request.folder / _REFERENCE)
    counts = count_step(training, mesh)
    reset_peak(world.device)
    seconds = []
    for _ in range(_BLOCKS):
        world.barrier()
        wait_for(world.device)
        started = time.perf_counter()
        for _ in range(_BLOCK_STEPS):
            training.step(rate=recipe.rate)
        wait_for(world.device)
        seconds.append((time.perf_counter() - started) / _BLOCK_STEPS)
    highest = peak_bytes(world.device)
    peak = None if before is None or highest is None else max(0, highest - before)
    median, spread = median_and_spread(seconds)
    speed = recipe.batch * mesh.replicas / median
    everybody = world.all_gather_object((counts, peak))
    answer = FormAnswer(
        traffic=mean_traffic([each[0].sent for each in everybody]),
        memory=max((each[0].memory for each in everybody), key=_total),
        peak_bytes=None if peak is None else max(each[1] or 0 for each in everybody),
        images_per_second=speed, spread=speed * spread / median, difference=apart,
    )  # fmt: skip
    if mesh.pipeline > 1:
        return _of_pipeline(answer, training)
    if mesh.data == world.size:
        communication = measure_communication(world, sizes=(4, 1 << 14, 1 << 18, 1 << 21), seconds=1.0)
        return replace(answer, communication=communication)
    return answer


class StepCounts(NamedTuple):
    """What one worker sent and held in a step."""

    sent: Sent
    memory: WorkerMemory


def count_step(training: Training, mesh: Mesh) -> StepCounts:
    """Make one step and count it; every worker must call this."""
    tensors = StepTensors(training.model)
    with counted() as wire, tensors.counted():
        training.step(rate=training.recipe.rate)
    memory = replace(
        state_of_worker(training), activations=tensors.activations.peak_bytes,
        gathered=2 * tensors.gathered_bytes,  # with the gradients
    )  # fmt: skip
    return StepCounts(sent(wire, mesh, training.world.rank), memory)


def _of_pipeline(answer: FormAnswer, training: Training) -> FormAnswer:
    """Add what only pipelines have: how long their workers wait, and where the model is cut."""
    assert isinstance(training.updater, PipelineUpdater)
    pipeline = training.updater.pipeline
    found = measure_idle(training, rate=training.recipe.rate)
    return replace(
        answer, idle=found.measured, schedule_idle=found.predicted, micro_batches=found.micro_batches,
        is_1f1b=pipeline.schedule != "gpipe", stage_layers=stage_layers(training),
    )  # fmt: skip


def stage_layers(training: Training) -> tuple[int, ...]:
    """Return how many layers each stage of a pipeline has; every worker must call this."""
    assert isinstance(training.updater, PipelineUpdater)
    own = {number: len(stage.layers) for number, stage in training.updater.pipeline.own.items()}
    counts = {key: count for one in training.world.all_gather_object(own) for key, count in one.items()}
    return tuple(counts[number] for number in sorted(counts))


def recipe_of(task: Task, settings: Sequence[str], mesh: Mesh, *, workers: int) -> Recipe:
    """Return the recipe of a form, whose replicas share the largest multiple of ``workers`` in the batch.

    Settings that only a pipeline uses are those of the forms that have one.
    """
    of_pipelines = [setting for setting in settings if parse_setting(setting)[0] in PIPELINES_ALONE]
    if not has_pipeline(mesh.form):
        Recipe(parallel="pipeline").with_settings(of_pipelines)  # says what is wrong with them
        settings = [setting for setting in settings if setting not in of_pipelines]
    recipe = task.recipe.with_settings([*settings, f'parallel="{mesh.form}"'])
    batch = max(1, recipe.batch // workers) * workers
    return recipe.change(workers=mesh.replicas, batch=batch // mesh.replicas, accumulate=1)


def _trained(task: Task, recipe: Recipe, world: World, num_steps: int) -> Training:
    training = Training(task, recipe, world)
    for _ in range(num_steps):
        training.step(rate=recipe.rate)
    return training


def _difference(training: Training, reference: Path) -> float:
    """Return the largest difference of a parameter from one worker's, relative to the largest one."""
    model, world = training.whole_model(), training.world  # rank 0 gets the whole model
    apart = 0.0
    if world.is_main:
        wanted: list[Tensor] = torch.load(reference, weights_only=True)
        own = [one.detach().cpu() for one in model.parameters()]
        largest = max(float(one.abs().max()) for one in wanted)
        apart = max(float((one - other).abs().max()) for one, other in zip(own, wanted, strict=True))
        apart /= largest or 1.0
    return world.broadcast_object(apart)


def _total(memory: WorkerMemory) -> float:
    return memory.total
