"""The state of a training: what a checkpoint holds, and how a training is brought back to it.

A checkpoint is a dictionary of tensors, numbers, text and lists. Its keys are a file format: files that older versions
wrote must still be read, so ``place`` is the key of :class:`TrainingState`, whatever the class is called.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rueda.errors import CheckpointError
from rueda.train.random_state import random_state, restore_random_state

if TYPE_CHECKING:
    from rueda.train.training import Training


@dataclass
class TrainingState:
    """The counters of a training: what a checkpoint holds beside the model, the optimizer and the loader."""

    epoch: int = 0
    """epochs finished"""
    step: int = 0
    """updates made"""
    clock: float = 0.0
    """where the learning rate schedule is, in updates of the first batch size"""
    examples: int = 0
    """examples seen by all workers"""
    seconds: float = 0.0
    """training time, evaluation excluded"""
    best: float = -math.inf
    """best test result so far"""
    recalibrated_at: int = 0
    """the update after which batch-norm statistics were last recomputed"""
    reached: int = 0
    """epochs in a row that reached the target"""
    batch: int = 0
    """the global batch that growth by the noise scale has come to; 0: the recipe's"""
    epoch_sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """loss, correct answers and examples of the current epoch that an earlier process counted before it was stopped"""


def epoch_sums(training: Training) -> list[float]:
    """Sum loss, correct answers and examples of the current epoch over all workers, which must all call it."""
    counted_here = training.updater.totals.sums_over(training.world)
    return [before + now for before, now in zip(training.state.epoch_sums, counted_here, strict=True)]


def checkpoint_contents(training: Training) -> dict[str, Any]:
    """Collect what a checkpoint holds; every worker must call it, and rank 0 gets the contents, the others nothing."""
    training.updater.synchronize_buffers()
    sums = epoch_sums(training)
    random_states = training.world.all_gather_object(random_state())
    if not training.world.is_main:
        return {}
    return {
        "format": 1,
        "task": training.task.name,
        "recipe": training.given_recipe.to_toml(),
        "place": {**asdict(training.state), "epoch_sums": sums},
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scaler": training.updater.scaler.state_dict(),
        "loader": training.loader.state_dict(),
        "random": random_states,
        "noise": None if training.noise is None else training.noise.state_dict(),
    }


def restore(training: Training, file: Path, contents: dict[str, Any]) -> None:
    """Bring a training that has not begun to where a checkpoint was written, on any number of workers.

    Raises:
        CheckpointError: the checkpoint is that of another task or recipe.
    """
    try:
        training.model.load_state_dict(contents["model"])
        training.optimizer.load_state_dict(contents["optimizer"])
        training.updater.scaler.load_state_dict(contents["scaler"])
        training.loader.load_state_dict(contents["loader"])
        training.state = replace(TrainingState(), **contents["place"])
        if training.noise is not None and contents.get("noise") is not None:
            training.noise.load_state_dict(contents["noise"])
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        first_line = str(error).splitlines()[0]
        raise CheckpointError(
            f"{file} does not fit task {training.task.name} and its recipe ({first_line}); resume with its own"
        ) from None
    if len(contents["random"]) == training.world.size:
        restore_random_state(contents["random"][training.world.rank])
