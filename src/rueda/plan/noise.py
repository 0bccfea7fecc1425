"""What a larger batch is worth: statistical efficiency from the gradient noise scale.

McCandlish et al. 2018 (1812.06162): with the noise scale φ, a batch B needs S updates and E = S B examples for the same
progress, with

    S(B) = Smin (1 + φ / B),    E(B) = Emin (1 + B / φ)

so against a batch B0 that is known to reach the target in so many updates,

    efficiency(B) = E(B0) / E(B) = (φ + B0) / (φ + B)       (Pollux, Qiao et al. 2021)
    goodput       = throughput x efficiency

Below φ almost every example counts; at φ, the critical batch, half; above it, more workers only burn examples.
"""

from __future__ import annotations

import math

from rueda.records.plan import PlanNoise
from rueda.records.profile import NoiseScale, Profile

EARLY = 0.1
"""a noise scale measured in the first tenth of a training is only a lower bound"""


def statistical_efficiency(batch: float, base_batch: float, noise_scale: float) -> float:
    """Say what an example in a large batch is worth, against one in the base batch.

    >>> statistical_efficiency(1000, 1000, 500), statistical_efficiency(1064, 64, 936)
    (1.0, 0.5)
    """
    return (noise_scale + base_batch) / (noise_scale + batch)


def updates_needed(batch: float, base_batch: float, base_updates: float, noise_scale: float | None) -> float:
    """Give the updates that a batch needs for the same progress; without a noise scale, those of as many epochs.

    >>> round(updates_needed(1024, 64, 16_000, 960)), updates_needed(1024, 64, 16_000, None)
    (1938, 1000.0)
    """
    same_examples = base_updates * base_batch / batch
    if noise_scale is None:
        return same_examples
    return same_examples / statistical_efficiency(batch, base_batch, noise_scale)


def noise_of(profile: Profile) -> PlanNoise | None:
    """Take the noise scale of the whole model that was measured latest, or None where there is none to trust.

    It grows while a model trains; the latest is nearest to what most of a training meets.
    """
    usable = [one for one in profile.noise if one.group is None and _is_good(one)]
    if not usable:
        return None
    first, last = (choose(usable, key=lambda one: one.step) for choose in (min, max))
    low, high = (value if math.isfinite(value) else None for value in (last.low, last.high))
    return PlanNoise(
        value=last.value, first=first.value, low=low, high=high, step=last.step, epochs=last.epochs, source=last.source
    )


def is_early(noise: PlanNoise, epochs: float) -> bool:
    """Say whether it was measured too early to choose a batch by."""
    return noise.epochs < EARLY * epochs


def _is_good(one: NoiseScale) -> bool:
    return math.isfinite(one.value) and one.value > 0
