"""Which workers divide the data and which share a batch: the mesh of a training, and a worker's place in it."""

from __future__ import annotations

from dataclasses import replace

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rueda.errors import RecipeError
from rueda.records import Recipe
from rueda.records.recipe.parallel_form import Mesh, mesh_of
from rueda.tasks import Task
from rueda.train.parallel.refusals import check_form
from rueda.world import World


def mesh_for(task: Task, recipe: Recipe, world: World, *, rehearse: bool = False) -> Mesh:
    """Return the mesh of a training; that of data parallelism on one worker and in a rehearsal.

    Raises:
        RecipeError: there are not as many workers as the form needs, or it cannot do what the recipe asks for.
    """
    workers = recipe.workers if rehearse else world.size
    if workers == 1 or recipe.parallel == "data":
        return Mesh(data=workers)
    mesh = mesh_of(recipe.parallel, workers)
    if mesh.workers != workers:
        do = "start as many, or change parallel"
        raise RecipeError(
            f"parallel = {recipe.parallel!r}", expected=f"{mesh.workers} workers", got=workers, do=do
        )  # fmt: skip
    check_form(task, recipe, mesh, rehearse=rehearse)
    return Mesh(data=workers) if rehearse else mesh


def in_mesh(recipe: Recipe, mesh: Mesh) -> Recipe:
    """Return the recipe of the workers that divide the data, with what the form decides.

    Statistics of batch norm are not recomputed in a pipeline, whose stages see no whole batch. Sharded parameters are
    divided along their first dimension, and messages between stages lie in one piece: neither is stored channels last.
    """
    changes: dict[str, object] = {"workers": mesh.replicas}
    if mesh.pipeline > 1:
        changes["recalibrate"] = "never"
    if mesh.sharded > 1 or mesh.pipeline > 1:
        changes["channels_last"] = False
    return recipe.change(**changes)


def data_place(world: World, mesh: Mesh) -> World:
    """Return a world whose rank and size are those of this worker's part of the batch; it reads data, no more."""
    identity = replace(world.identity, rank=world.rank // mesh.sharers, size=mesh.replicas)
    return World(identity=identity, device=world.device, seed=world.seed)


def device_mesh(world: World, mesh: Mesh) -> DeviceMesh:
    """Make the process groups of a mesh, whose dimensions are named as the forms; every worker must call it."""
    sizes = {kind: getattr(mesh, kind) for kind in mesh.kinds}
    return init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
