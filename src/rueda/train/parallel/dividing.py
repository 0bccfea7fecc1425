"""Divide the tensors of a model among the workers of a mesh, and build the updater of this worker's parts."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from rueda.records import Recipe
from rueda.records.recipe.parallel_form import Mesh
from rueda.tasks import Task
from rueda.terminal.numbers import things
from rueda.train.optimizers import build_optimizer
from rueda.train.parallel.divided_updater import DividedUpdater
from rueda.train.parallel.division import data_place, device_mesh
from rueda.train.parallel.sharding import ShardedStep, shard, sharded_layers
from rueda.train.parallel.tensor_split import RowOrder, split_matrices, whole_layers
from rueda.train.parallel.whole_state import split_groups
from rueda.train.step_module import StepModule
from rueda.world import World


def divided_updater(
    task: Task, recipe: Recipe, world: World, model: nn.Module, mesh: Mesh, memory_format: torch.memory_format
) -> DividedUpdater:
    """Split the matrices of a model, shard what each tensor group holds, and build the updater; all must call it.

    Args:
        task: provides the step, and the plan or the layers of a model that is none of the built-in ones.
        recipe: how to train.
        world: the workers.
        model: the whole model, of which each worker keeps its parts.
        mesh: the form.
        memory_format: the memory format of batches of images.
    """
    world.synchronise(model)
    devices = device_mesh(world, mesh)
    remarks: list[str] = []
    order = RowOrder()
    if mesh.tensor > 1:
        order = split_matrices(model, task.tensor_plan, devices["tensor"], task.name)
        whole = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in whole_layers(model))
        remarks.append(
            f"tensor: {things(_num_split(model), 'weight')} split over {mesh.tensor} workers; whole on "
            f"each: {', '.join(whole) or 'nothing'}"
        )
    kind = ShardedStep if mesh.sharded > 1 else StepModule
    step = kind(task, model, memory_format, recomputed=recipe.activation_checkpointing)
    if isinstance(step, ShardedStep):
        layers = sharded_layers(model, task.layers)
        shards = devices["data", "sharded"] if mesh.data > 1 else devices["sharded"]
        shard(step, layers, shards)
        remarks.append(f"sharded: {things(len(layers), 'layer')} gathered one by one, the rest together")
    averages = mesh.data > 1 and mesh.sharded == 1  # a sharded model averages over its replicas itself
    optimizer = build_optimizer(recipe, model, task.optimizer)
    split_groups(optimizer, {id(parameter): name for name, parameter in model.named_parameters()})
    updater = DividedUpdater(
        task, recipe, world, model, step, optimizer, place=data_place(world, mesh), order=order,
        replicas=devices.get_group("data") if averages else None, sharers=_sharers(devices, mesh),
    )  # fmt: skip
    updater.remarks += remarks
    return updater


def _sharers(devices: DeviceMesh, mesh: Mesh) -> dist.ProcessGroup | None:
    """Return the group of the workers that have parts of one model; None if these are all workers."""
    kinds = [kind for kind in mesh.kinds if kind != "data"]
    return devices.get_group(kinds[0]) if len(kinds) == 1 else None


def _num_split(model: nn.Module) -> int:
    return sum(hasattr(one, "placements") and one.dim() > 1 for one in model.parameters())
