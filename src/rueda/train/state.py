"""The state of a training: what a checkpoint holds, and how a training is restored from it.

A checkpoint is a dictionary of tensors, numbers, text and lists. Its keys are a file format: files that older versions
wrote must remain readable, so the key of :class:`TrainingState` stays ``place``, whatever the class is called.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rueda.errors import CheckpointError
from rueda.files.remote import AnyPath
from rueda.records import Recipe
from rueda.records.recipe.differences import describe_differences
from rueda.tasks.phase import OPTIONS
from rueda.train.buffers import running_statistics, write_running_statistics
from rueda.train.parallel.whole_state import IMPLEMENTATION
from rueda.train.random_state import random_state, restore_random_state
from rueda.train.resume import MAY_CHANGE
from rueda.train.totals import Sums, added, former_sums

if TYPE_CHECKING:
    from rueda.train.training import Training

MOST_LOCAL_BYTES = 2**28
"""the parameters and optimizer states of workers that make updates of their own are kept up to this size"""
MOST_STATISTICS_BYTES = 2**26
"""the running statistics of all workers are kept in a checkpoint up to this size; beyond it only their mean is"""


@dataclass
class TrainingState:
    """The counters of a training: what a checkpoint holds besides the model, the optimizer and the loader."""

    epoch: int = 0
    """epochs finished"""
    step: int = 0
    """updates made"""
    clock: float = 0.0
    """position in the learning-rate schedule, in updates of the initial batch size"""
    examples: int = 0
    """examples seen by all workers"""
    seconds: float = 0.0
    """training time, evaluation excluded"""
    best: float = -math.inf
    """best result so far on the deciding data (validation data, or else test data): the primary metric, or the loss,
    with its sign such that higher is better"""
    recalibrated_at: int = 0
    """the update after which batch-norm statistics were last recomputed"""
    reached: int = 0
    """consecutive epochs that reached the target"""
    batch: int = 0
    """the global batch that the noise scale asks for, above the largest one too; 0: the recipe's"""
    num_roll_backs: int = 0
    """how often the training has gone back to a checkpoint because it diverged"""
    rate_factor: float = 1.0
    """what these roll-backs multiply the learning rate by"""
    epoch_sums: Sums = field(default_factory=dict)
    """sums of the current epoch that an earlier process counted before it was stopped (:mod:`rueda.train.totals`)"""
    units: float = 0.0
    """what the losses of all finished epochs were averaged over: examples, or tokens"""


def epoch_sums(training: Training) -> Sums:
    """Return the sums of the current epoch over all workers, which must all call it."""
    counted_here = training.updater.totals.sums_over(training.world)
    return added(counted_here, former_sums(training.state.epoch_sums, training.task.all_metrics))


def checkpoint_contents(training: Training, holders: Container[int] = (0,)) -> dict[str, Any]:
    """Collect what a checkpoint holds; every worker must call it, and the ranks ``holders`` get the contents.

    All ranks could hold it: what differs between them is gathered, everything else is the same. The others get nothing.

    The model's state holds the mean of the workers' running statistics. Their own are kept beside it and stay in use,
    so that writing a checkpoint, or resuming on the same number of workers, does not change any digit of the results.
    """
    world, model = training.world, training.model
    own = running_statistics(model)
    of_workers = None
    is_whole = training.mesh.pipeline == 1  # the buffers are, which are not divided otherwise
    if own is not None and is_whole and 1 < world.size <= MOST_STATISTICS_BYTES // own.nbytes:
        of_workers = torch.stack(world.all_gather(own)).cpu()
    training.updater.synchronize_buffers()
    local = _local_state(training)
    with training.updater.mean_parameters():
        state, optimizer = training.updater.model_state(), training.updater.optimizer_state()
        average = None
        if training.average is not None:
            average = training.updater.whole_tensors(training.average.state_dict())
        if local is not None:  # what follows the block are this worker's own parameters
            state = {name: tensor.clone() for name, tensor in state.items()}
    if of_workers is not None and own is not None:
        buffers = {name for name, _ in model.named_buffers()}
        state = {name: tensor.clone() if name in buffers else tensor for name, tensor in state.items()}
        write_running_statistics(model, own)
    sums = epoch_sums(training)
    random_states = world.all_gather_object(random_state())
    if world.rank not in holders:
        return {}
    return {
        "format": 1,
        "task": training.task.name,
        "recipe": training.given_toml,
        "place": {**asdict(training.state), "epoch_sums": sums},
        "model": state,
        "average": average,
        "statistics": of_workers,
        "local": local,
        "optimizer": optimizer,
        "scaler": training.updater.scaler.state_dict(),
        "loader": training.loader.state_dict(),
        "random": random_states,
        "noise": None if training.noise is None else training.noise.state_dict(),
        "phases": [
            {"optimizer": each.optimizer.state_dict(), "scaler": each.scaler.state_dict()}
            for each in training.updaters[1:]
        ],
        "phase_recipes": [each.recipe.to_toml() for each in training.updaters] if training.task.phases else [],
    }


def _local_state(training: Training) -> dict[str, Any] | None:
    """Return what workers that make updates of their own need besides the mean of their parameters; all must call it.

    The parameters and the optimizer state of each worker are kept up to :data:`MOST_LOCAL_BYTES` of all of them; beyond
    it, a resumed training continues from the mean, as after an exchange, with rank 0's optimizer state.
    """
    exchange, recipe = training.updater.exchange, training.recipe
    if exchange is None:
        return None
    num_bytes = 3 * recipe.workers * sum(one.nbytes for one in exchange.anchors.values())
    workers = training.updater.states_of_workers() if num_bytes <= MOST_LOCAL_BYTES else []
    return {"exchange": exchange.state_dict(), "workers": workers}


def evaluated_weights(contents: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the model that was evaluated: with ``ema_decay``, the average of its weights."""
    return {**contents["model"], **(contents.get("average") or {})}


def restore(training: Training, file: AnyPath, contents: dict[str, Any]) -> None:
    """Restore a training from a checkpoint, on any number of workers.

    Args:
        training: the training, prepared with the same task.
        file: the checkpoint, for messages.
        contents: what it holds, as :func:`checkpoint_contents` collected it.

    Raises:
        CheckpointError: the checkpoint is that of another task or recipe.
    """
    former = Recipe.from_toml(contents["recipe"])
    try:
        training.updater.load_model_state(contents["model"])
        of_workers = contents.get("statistics")
        same_form = training.mesh.pipeline == 1 and former.parallel == training.recipe.parallel
        if of_workers is not None and same_form and len(of_workers) == training.world.size:
            write_running_statistics(training.model, of_workers[training.world.rank].to(training.world.device))
        if training.average is not None:  # of a training without one, its weights
            averages = contents.get("average") or contents["model"]
            training.updater.load_whole_tensors(training.average.state_dict(), averages)
        of_phases = [{name: contents[name] for name in ("optimizer", "scaler")}, *contents.get("phases", [])]
        changes = _changes_of_phases(training, file, contents)
        for updater, state, changed in zip(training.updaters, of_phases, changes, strict=True):
            own = updater.own_optimizer_state(state["optimizer"])
            _restore_optimizer(updater.optimizer, own, changed)
            if state["scaler"] and former.precision == training.recipe.precision == "fp16":
                updater.scaler.load_state_dict(state["scaler"])
        training.updater.end_local()
        if (local := contents.get("local")) is not None:
            training.updater.begin_local()
            assert training.updater.exchange is not None, "it has begun"
            training.updater.exchange.load_state_dict(local["exchange"])
            training.updater.load_states_of_workers(local["workers"])
        training.loader.load_state_dict(contents["loader"])
        state = replace(TrainingState(), **contents["place"])
        if not training.recipe.adascale:  # the clock counts updates of the recipe's global batch
            state.clock *= former.in_data_workers().global_batch / training.recipe.global_batch
        training.restart(state)
        if training.noise is not None and contents.get("noise") is not None:
            training.noise.load_state_dict(contents["noise"])
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        first_line = str(error).splitlines()[0]
        raise CheckpointError(
            f"{file} does not fit task {training.task.name} and its recipe ({first_line}); resume with its own"
        ) from None
    if len(contents["random"]) == training.world.size:
        restore_random_state(contents["random"][training.world.rank])


def _arrange(state: dict[str, Any], parameter: Tensor) -> None:
    """Store the tensors of a state in the order in which the parameter is stored, such as channels last.

    torch's fused kernels take the numbers in the order of the memory. Another form, or another recipe, may have
    stored them otherwise.
    """
    for name, value in state.items():
        is_alike = isinstance(value, Tensor) and value.shape == parameter.shape and type(value) is Tensor
        if is_alike and value.stride() != parameter.stride():
            state[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _changes_of_phases(training: Training, file: AnyPath, contents: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for each phase the fields of its recipe that differ from those of the checkpoint.

    Raises:
        CheckpointError: the task has since given a phase another optimizer, or changed what may not change otherwise.
    """
    of_all = training.given_recipe.changes_from(Recipe.from_toml(contents["recipe"]))
    formers = [Recipe.from_toml(text) for text in contents.get("phase_recipes", [])]
    if len(formers) != len(training.updaters):  # a task without phases, or an older checkpoint
        return [of_all] * len(training.updaters)
    found = []
    for number, (updater, former) in enumerate(zip(training.updaters, formers, strict=True)):
        changes = updater.recipe.changes_from(former)
        fixed = (changes.keys() & set(OPTIONS)) - MAY_CHANGE
        if fixed:
            difference = describe_differences(former, updater.recipe, fixed)
            raise CheckpointError(
                f"phase {training.task.phases[number].name} of {file} {difference}; resume with its own, or start a "
                "new run in another folder"
            )
        found.append(changes)
    return found


def _restore_optimizer(optimizer: Optimizer, state: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Restore an optimizer's state; options that the recipe has changed since the checkpoint apply from now on.

    Args:
        optimizer: the optimizer of the training, or of one of its phases.
        state: its state in the checkpoint.
        changes: the fields of the recipe that differ from those of the checkpoint.
    """
    given = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)  # with the options that the checkpoint holds
    for group, options in zip(optimizer.param_groups, given, strict=True):
        group.update({name: options[name] for name in IMPLEMENTATION if name in options})
        for parameter in group["params"]:
            _arrange(optimizer.state.get(parameter, {}), parameter)
    if changes.keys() & {"momentum", "nesterov", "betas", "weight_decay", "trust"}:
        for group, options in zip(optimizer.param_groups, given, strict=True):
            group.update(options)
