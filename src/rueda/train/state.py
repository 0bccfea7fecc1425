"""Where a training is, and what it came to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from rueda.records import Recipe, Row
from rueda.records.profile import NoiseScale


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a training came to."""

    status: str
    """finished, reached-target, diverged or interrupted"""
    row: Row | None
    """the last epoch's figures"""
    model: nn.Module
    """the trained model, unwrapped"""
    recipe: Recipe
    """the recipe as it was run"""
    folder: Path | None
    """the run folder, if one was asked for"""
    signal: int | None = None
    """what interrupted it"""
    noise_scale: NoiseScale | None = None
    """the gradient noise scale at the end, if the recipe asked for it"""


@dataclass
class Place:
    """Where the training is: what a checkpoint holds beside the model and the optimizer."""

    epoch: int = 0
    """epochs finished"""
    step: int = 0
    """updates made"""
    clock: float = 0.0
    """where the rate schedule is, in updates of the first batch size"""
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
    """loss, correct answers and examples of the epoch under way, before this process took over"""
