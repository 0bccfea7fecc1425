"""The updaters of a training: one for each phase of the task, or a single one for the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rueda.errors import RecipeError
from rueda.optim.meters import Groups
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.train.local_rehearsal import LocalRehearsal
from rueda.train.optimizers import build_optimizer
from rueda.train.rehearsal import Rehearsal
from rueda.train.step_module import StepModule
from rueda.train.update import Updater
from rueda.world import World
from rueda.world.seeds import derive


def build_updaters(
    task: Task,
    recipe: Recipe,
    world: World,
    model: nn.Module,
    *,
    groups: Groups,
    memory_format: torch.memory_format,
    rehearse: bool,
) -> list[Updater]:
    """Build the updaters in the order of the phases; the first one's totals and noise scale are those of the training.

    Args:
        task: provides the phases.
        recipe: how to train; a phase may change some of it.
        world: the workers.
        model: the model, on its device.
        groups: parameter groups whose noise scale is measured separately.
        memory_format: the memory format of batches of images.
        rehearse: compute the updates of all workers in this process.
    """
    kind = (LocalRehearsal if recipe.is_local else Rehearsal) if rehearse else Updater
    called: nn.Module = torch.compile(model) if recipe.compile else model  # type: ignore[assignment]
    options: dict[str, Any] = {"sync_buffers": False, "gradient_as_bucket_view": True, **_reducer_options(recipe)}
    recomputed = recipe.activation_checkpointing
    if not task.phases:
        optimizer = build_optimizer(recipe, model, task.optimizer)
        wrapped = world.wrap(StepModule(task, called, memory_format, recomputed=recomputed), **options)
        return [kind(task, recipe, world, model, wrapped, optimizer, groups)]
    if recipe.adascale:
        raise RecipeError(f"adascale follows one optimizer, but task {task.name} has phases with several; leave it out")
    if recipe.is_local:
        raise RecipeError(
            f"sync_every and outer optimizers exchange the parameters of one optimizer, but task {task.name} has "
            "phases with several; leave them out"
        )
    updaters: list[Updater] = []
    for number, phase in enumerate(task.phases):
        trained, own = phase.trained(model), recipe.change(**phase.recipe)
        if number > 0:  # random numbers of its own; the first phase continues with those that the data left
            own = own.change(seed=derive("phase", recipe.seed, number) % 2**31)
        part = task.for_phase(number)
        with training_only(model, trained):
            optimizer = build_optimizer(own, model, task.optimizer)
            wrapped = world.wrap(StepModule(part, called, memory_format, trained, recomputed=recomputed), **options)
            updater = kind(part, own, world, model, wrapped, optimizer, groups if number == 0 else {})
        updater.set_phase(trained, recipe.rate)
        updater.remarks = updaters[0].remarks if updaters else updater.remarks
        updaters.append(updater)
    return updaters


@contextmanager
def training_only(model: nn.Module, parameters: Sequence[nn.Parameter] | None) -> Iterator[None]:
    """Let only these parameters require a gradient inside the block; None changes nothing."""
    if parameters is None:
        yield
        return
    kept = {id(parameter) for parameter in parameters}
    others = [one for one in model.parameters() if one.requires_grad and id(one) not in kept]
    for one in others:
        one.requires_grad_(False)
    try:
        yield
    finally:
        for one in others:
            one.requires_grad_(True)


def _reducer_options(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's options of DistributedDataParallel."""
    size = {} if recipe.bucket_megabytes is None else {"bucket_cap_mb": recipe.bucket_megabytes}
    return {**size, **({"static_graph": True} if recipe.static_graph else {})}
