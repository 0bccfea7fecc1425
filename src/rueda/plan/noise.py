"""The statistical efficiency of a larger batch, from the gradient noise scale.

McCandlish et al. 2018 (1812.06162): at a noise scale φ, a training with batch size B needs S updates and E = S B
examples for the same progress, with

    S(B) = Smin (1 + φ / B),    E(B) = Emin (1 + B / φ)

so that, compared with a batch size B0 that is known to reach the target,

    efficiency(B) = E(B0) / E(B) = (φ + B0) / (φ + B)       (Pollux, Qiao et al. 2021)
    goodput       = throughput x efficiency

Below φ, which is also called the critical batch size, almost every example contributes fully; at φ each contributes
half as much; far above it more workers bring next to nothing.
"""

from __future__ import annotations

import math

from rueda.records.plan import PlanNoise
from rueda.records.profile import Profile

EARLY = 0.1
"""a noise scale measured in this first fraction of a training is only a lower bound"""


def statistical_efficiency(batch: float, base_batch: float, noise_scale: float) -> float:
    """Return how much an example in a batch contributes, relative to one in the base batch.

    >>> statistical_efficiency(1000, 1000, 500), statistical_efficiency(1064, 64, 936)
    (1.0, 0.5)
    """
    return (noise_scale + base_batch) / (noise_scale + batch)


def updates_needed(batch: float, base_batch: float, base_updates: float, noise_scale: float | None) -> float:
    """Return the updates that a batch size needs for the same progress; without a noise scale, for the same epochs.

    >>> round(updates_needed(1024, 64, 16_000, 960)), updates_needed(1024, 64, 16_000, None)
    (1938, 1000.0)
    """
    same_examples = base_updates * base_batch / batch
    if noise_scale is None:
        return same_examples
    return same_examples / statistical_efficiency(batch, base_batch, noise_scale)


def noise_of(profile: Profile) -> PlanNoise | None:
    """Return the noise scale of the whole model that was measured last; None if the profile has no finite one.

    The noise scale grows during training, so the last one is the best estimate for most of the training.
    """
    usable = [one for one in profile.noise if one.group is None and math.isfinite(one.value) and one.value > 0]
    if not usable:
        return None
    first, last = (choose(usable, key=lambda one: one.step) for choose in (min, max))
    low, high = (value if math.isfinite(value) else None for value in (last.low, last.high))
    return PlanNoise(
        value=last.value, first=first.value, low=low, high=high, step=last.step, epochs=last.epochs, source=last.source
    )


def is_early(noise: PlanNoise, epochs: float) -> bool:
    """Tell whether a noise scale was measured too early in the training to choose a batch size by it."""
    return noise.epochs < EARLY * epochs
