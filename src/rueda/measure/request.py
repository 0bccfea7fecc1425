"""The requests to the worker processes of a measurement, and their answers. This module does not import torch.

``rueda measure`` starts processes: first one worker alone (:class:`MeasureRequest`, :class:`AloneAnswer`), then several
(:class:`TogetherRequest`, :class:`TogetherAnswer`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rueda.records import Recipe
from rueda.records.profile import Communication, Profile, Together

SIZES = (4, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
"""bytes of the measured all-reduces, from one number to two thirds of the gradients of a ResNet-50"""
QUICK_SIZES = (4, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds for each phase, so that a slow or busy machine measures fewer steps instead of taking longer."""

    steps: float
    communication: float
    together: float
    """seconds for each number of workers"""
    noise: float
    """0: the noise scale is not measured"""
    longest_step: float
    """no batch is tried after one whose step takes longer"""
    sizes: tuple[int, ...]
    """bytes of the measured all-reduces"""


QUICK = Budget(steps=2.5, communication=1.0, together=2.5, noise=2.0, longest_step=0.3, sizes=QUICK_SIZES)
FULL = Budget(steps=24.0, communication=6.0, together=30.0, noise=20.0, longest_step=3.0, sizes=SIZES)


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """A measurement; the fields are those of :func:`rueda.measure.measure`."""

    task: str
    workers: tuple[int, ...] | None
    """the numbers of workers to measure together; None: the number of GPUs, or 2 on a CPU"""
    batches: tuple[int, ...] | None
    settings: tuple[str, ...]
    quick: bool
    budget: Budget
    progress: bool
    device: str | None = None
    """the device that the caller has chosen; None: the best available one"""


@dataclass(frozen=True, kw_only=True)
class AloneAnswer:
    """The profile of one worker."""

    profile: Profile
    workers: tuple[int, ...]
    """the numbers of workers to measure together, each 2 or more"""


@dataclass(frozen=True, kw_only=True)
class TogetherRequest:
    """A measurement of several workers."""

    task: str
    recipe: Recipe
    batches: tuple[int, ...]
    budget: Budget
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class TogetherAnswer:
    """The result of several workers."""

    communication: Communication
    together: Together | None
    """None for a Keras model, whose steps are measured alone"""
