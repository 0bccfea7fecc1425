"""What a measurement is asked, and what its parts answer. Nothing here loads torch.

``rueda measure`` measures in processes that it starts: one worker alone first (:class:`MeasureRequest`,
:class:`AloneAnswer`), then several (:class:`TogetherRequest`, :class:`TogetherAnswer`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rueda.records import Recipe
from rueda.records.profile import Communication, Profile, Together

SIZES = (4, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
"""bytes of all-reduces: from one number to the gradients of a ResNet-50 and half"""
QUICK_SIZES = (4, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds for each phase, so that a slow or busy machine measures less, not longer."""

    steps: float
    communication: float
    together: float
    """for each number of workers"""
    noise: float
    """0: it is not measured"""
    longest_step: float
    """a batch whose step takes longer is the last"""
    sizes: tuple[int, ...]
    """bytes of the all-reduces"""


QUICK = Budget(steps=4.0, communication=1.5, together=4.0, noise=3.0, longest_step=0.5, sizes=QUICK_SIZES)
FULL = Budget(steps=24.0, communication=6.0, together=30.0, noise=20.0, longest_step=3.0, sizes=SIZES)


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """A measurement; the fields are those of :func:`rueda.measure.measure`."""

    task: str
    workers: tuple[int, ...] | None
    """numbers of workers that are measured together; None: as many as there are GPUs, or 2"""
    batches: tuple[int, ...] | None
    settings: tuple[str, ...]
    quick: bool
    budget: Budget
    progress: bool
    device: str | None = None
    """that of the process that asks, if it has chosen one; None: the best that there is"""


@dataclass(frozen=True, kw_only=True)
class AloneAnswer:
    """What one worker found."""

    profile: Profile
    workers: tuple[int, ...]
    """numbers of workers that are to be measured together, each 2 or more"""


@dataclass(frozen=True, kw_only=True)
class TogetherRequest:
    """What several workers shall measure."""

    task: str
    recipe: Recipe
    batches: tuple[int, ...]
    budget: Budget
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class TogetherAnswer:
    """What several workers found."""

    communication: Communication
    together: Together
