"""Build the pipeline of a training: measure the layers, cut the model, and keep this worker's stages."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from rueda.data.nest import select
from rueda.records import Recipe
from rueda.records.recipe.parallel_form import Mesh
from rueda.tasks import Task
from rueda.tasks.task import Data
from rueda.train.activation_checkpointing import segments_of
from rueda.train.loaders import evaluation_loader, without_weights
from rueda.train.micro_batches import MicroBatch
from rueda.train.optimizers import build_optimizer
from rueda.train.parallel.division import data_place, device_mesh
from rueda.train.parallel.layer_times import best_cuts, measure_layers
from rueda.train.parallel.pipeline import CHUNKS, Pipeline
from rueda.train.parallel.pipeline_updater import PipelineUpdater
from rueda.train.parallel.stages import (
    build_stages,
    check_layers,
    check_num_stages,
    check_trained,
    keep_stages,
    layers_of,
)
from rueda.train.parallel.stand_in import ModelInputs, inputs_of
from rueda.train.parallel.tied import TiedParameters, owners_of
from rueda.train.step_module import arranged
from rueda.world import World


def pipeline_updater(
    task: Task,
    recipe: Recipe,
    world: World,
    model: nn.Module,
    data: Data,
    mesh: Mesh,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
) -> PipelineUpdater:
    """Build the updater of a training; the layers are measured on the first examples of its data."""
    loader = evaluation_loader(data, recipe.local_batch, World(device=world.device), dtype, task.collate)
    item = next(iter(loader))
    sample = MicroBatch(arranged(without_weights(item), memory_format), len(item[-1]))
    groups = pipeline_groups(world, mesh)
    return build_pipeline_updater(task, recipe, world, model, sample, groups)


class PipelineGroups(NamedTuple):
    """The process groups of a worker in pipelines side by side, and its place among the pipelines."""

    pipeline: dist.ProcessGroup | None
    """the workers of its own pipeline, in the order of their stages"""
    data: dist.ProcessGroup | None
    """the workers that have the same stages; None if there is one pipeline"""
    members: list[list[int]]
    """the ranks of all pipelines"""
    place: World
    """its rank and size are those of the worker's pipeline among all"""


def pipeline_groups(world: World, mesh: Mesh) -> PipelineGroups:
    """Make the process groups of pipelines beside each other; every worker must call it."""
    members = [list(range(start, start + mesh.pipeline)) for start in range(0, world.size, mesh.pipeline)]
    devices = device_mesh(world, mesh)
    data = devices.get_group("data") if mesh.data > 1 else None
    return PipelineGroups(devices.get_group("pipeline"), data, members, data_place(world, mesh))


def default_micro_batches(recipe: Recipe, length: int) -> int:
    """Return the number of micro-batches: ``micro_batches``, or else ``accumulate``, or else four for each stage."""
    if recipe.micro_batches is not None:
        return recipe.micro_batches
    return recipe.accumulate if recipe.accumulate > 1 else 4 * length


def build_pipeline_updater(
    task: Task, recipe: Recipe, world: World, model: nn.Module, sample: MicroBatch, groups: PipelineGroups
) -> PipelineUpdater:
    """Cut the model by the measured times of its layers, and build the updater of this worker's stages.

    Args:
        task: provides the step, and the layers of a model that is no ``nn.Sequential``.
        recipe: the schedule, the number of micro-batches and the optimizer.
        world: all workers, which must all call this function.
        model: the whole model, equal on all workers; it keeps only the parameters of this worker's stages.
        sample: a batch on which the layers are measured.
        groups: the process groups of this worker.
    """
    length = len(groups.members[0])
    chunks = CHUNKS if recipe.pipeline_schedule == "interleaved" else 1
    layers = layers_of(model, task.layers, task=task.name)
    check_num_stages(len(layers), length * chunks, task.name)
    micro_batches = default_micro_batches(recipe, length)
    inputs = _first_inputs(task, sample, micro_batches)
    check_layers(model, layers, inputs.arguments, inputs.named, task=task.name)
    ends = world.broadcast_object(best_cuts(_seconds(layers, inputs), length * chunks) if world.is_main else [])
    stages = build_stages(layers, ends)
    check_trained(stages, length, task.name)
    parameters = list(model.parameters())
    tied = TiedParameters(parameters, owners_of(stages, length), groups.pipeline, groups.members)
    rank = dist.get_rank(groups.pipeline)
    keep_stages(model, stages[rank::length])
    if recipe.activation_checkpointing:
        named = task.layers is not None or not isinstance(model, nn.Sequential)
        for stage in stages[rank::length]:
            stage.segments = segments_of(list(stage.layers), one_by_one=named)
    pipeline = Pipeline(
        task, stages, schedule=recipe.pipeline_schedule, micro_batches=micro_batches, group=groups.pipeline,
        device=world.device,
    )  # fmt: skip
    optimizer = build_optimizer(recipe, model, task.optimizer)
    updater = PipelineUpdater(
        task, recipe, world, model, optimizer, pipeline=pipeline, tied=tied, pipeline_group=groups.pipeline,
        data_group=groups.data, place=groups.place,
    )  # fmt: skip
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    updater.remarks.append(
        f"pipeline of {len(ends)} stages with {', '.join(map(str, counts))} layers, cut by their time"
    )
    return updater


def _first_inputs(task: Task, sample: MicroBatch, micro_batches: int) -> ModelInputs:
    """Return the inputs of the model for a micro-batch of the sample, with the random numbers kept."""
    count = max(1, sample.num_examples // micro_batches)
    with torch.random.fork_rng(devices=[]):
        return inputs_of(task, select(sample.batch, slice(0, count)))


def _seconds(layers: list[nn.Module], inputs: ModelInputs) -> list[float]:
    """Measure the layers on a micro-batch, with the random numbers kept."""
    with torch.random.fork_rng(devices=[]):
        return measure_layers(layers, inputs.arguments, inputs.named)
