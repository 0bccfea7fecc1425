"""The parts of ``rueda parallelism`` that run in worker processes: one worker alone, then all workers in one form.

Gradients go through torch.distributed (``RUEDA_TRANSPORT=gloo``), since the shared memory of one host, which would
average them otherwise, sends nothing that could be compared with the bytes of a network.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rueda.data.nest import tensors
from rueda.measure.communication import measure_communication
from rueda.measure.layers import layers_of_training
from rueda.measure.spread import median_and_spread
from rueda.measure.step_meter import describe
from rueda.measure.steps import Stepper, measure_steps
from rueda.measure.wire_bytes import WireBytes
from rueda.measure.work import work_of
from rueda.records import Recipe
from rueda.records.parallelism import Traffic, WorkerMemory, sent_bytes
from rueda.records.profile import Communication, Profile
from rueda.records.throughput import counted_unit
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.train.counting import SavedTensors
from rueda.train.training import Training
from rueda.world import World, open_world
from rueda.world.device import wait_for
from rueda.world.shared_memory.transport import TRANSPORT

_REFERENCE = "one-worker.pt"
_SMALL_BYTES = 256
"""collectives of fewer bytes are counts and losses of the loop, not a part of the model"""
_BLOCKS, _BLOCK_STEPS = 9, 3


@dataclass(frozen=True, kw_only=True)
class FormRequest:
    """One training to measure."""

    task: str
    settings: tuple[str, ...]
    workers: int
    """workers that share the global batch of one worker's recipe"""
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
    images_per_second: float
    spread: float
    difference: float
    communication: Communication


def one_worker(request: FormRequest) -> OneWorkerAnswer:
    """Train one worker for some steps and keep its parameters; measure its step and count its layers."""
    task = load_task_and_data(request.task)
    recipe = recipe_of(task, request.settings, workers=request.workers, parts=1)
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


def data_form(request: FormRequest) -> FormAnswer:
    """Train all workers with data parallelism and measure it; every worker must call this."""
    os.environ[TRANSPORT] = "gloo"
    task, world = load_task_and_data(request.task), open_world()
    recipe = recipe_of(task, request.settings, workers=request.workers, parts=world.size)
    training = _trained(task, recipe, world, request.num_steps)
    reference: list[Tensor] = torch.load(request.folder / _REFERENCE, weights_only=True)
    own = [one.detach().cpu() for one in training.model.parameters()]
    largest = max(float(one.abs().max()) for one in reference)
    apart = max(float((one - other).abs().max()) for one, other in zip(own, reference, strict=True))
    saved = SavedTensors([*training.model.parameters(), *training.model.buffers()])
    with WireBytes() as wire, saved.hooks():
        training.step(rate=recipe.rate)
    memory = _memory(training, saved.num_bytes)
    seconds = []
    for _ in range(_BLOCKS):
        world.barrier()
        wait_for(world.device)
        started = time.perf_counter()
        for _ in range(_BLOCK_STEPS):
            training.step(rate=recipe.rate)
        wait_for(world.device)
        seconds.append((time.perf_counter() - started) / _BLOCK_STEPS)
    median, spread = median_and_spread(seconds)
    speed = recipe.batch * world.size / median
    everybody = world.all_gather_object((_traffic(wire), memory, apart / (largest or 1.0)))
    return FormAnswer(
        traffic=_mean([each[0] for each in everybody]), memory=max((each[1] for each in everybody), key=_total),
        images_per_second=speed, spread=speed * spread / median, difference=max(each[2] for each in everybody),
        communication=measure_communication(world, sizes=(4, 1 << 14, 1 << 18, 1 << 21), seconds=1.0),
    )  # fmt: skip


def recipe_of(task: Task, settings: tuple[str, ...], *, workers: int, parts: int) -> Recipe:
    """Return the recipe of each of ``parts`` workers, which share the largest multiple of ``workers`` in the batch."""
    recipe = task.recipe.with_settings(settings)
    batch = max(1, recipe.batch // workers) * workers
    return recipe.change(workers=parts, batch=batch // parts, accumulate=1)


def _trained(task: Task, recipe: Recipe, world: World, num_steps: int) -> Training:
    training = Training(task, recipe, world)
    for _ in range(num_steps):
        training.step(rate=recipe.rate)
    return training


def _memory(training: Training, activations: int) -> WorkerMemory:
    """Return the bytes of the tensors that this worker holds; gradients have the size of the trained parameters."""
    trained = [one for one in training.model.parameters() if one.requires_grad]
    return WorkerMemory(
        parameters=_size(list(trained)), gradients=_size(list(trained)), activations=activations,
        optimizer=_size([one for one in tensors(list(training.optimizer.state.values())) if one.dim() > 0]),
    )  # fmt: skip


def _size(of: list[Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in of)


def _total(memory: WorkerMemory) -> float:
    return memory.total


def _traffic(wire: WireBytes) -> dict[str, float]:
    """Return the bytes that this rank sent by collective, without the small ones of the loop."""
    found: dict[str, float] = {}
    for key, num_bytes in wire.tensors.items():
        if num_bytes / wire.calls[key] > _SMALL_BYTES:
            found[key.kind] = found.get(key.kind, 0.0) + sent_bytes(key.kind, num_bytes, len(key.ranks))
    return found


def _mean(each: list[dict[str, float]]) -> tuple[Traffic, ...]:
    """Return the mean over the workers; in the form of data, an all-reduce carries gradients."""
    kinds = dict.fromkeys(kind for one in each for kind in one)
    return tuple(
        Traffic(
            carries="gradients" if kind == "all-reduce" else "other", collective=kind,
            num_bytes=statistics.mean(one.get(kind, 0.0) for one in each),
        )
        for kind in kinds
    )  # fmt: skip
