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
from collections.abc import Sequence

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


def mean_noise_scale(values: Sequence[float], base_batch: float) -> float:
    """Return the noise scale of a whole training, of which each measurement stands for an equal number of updates.

    Where the noise scale is φ, an update at the batch B0 makes 1 / (1 + φ / B0) of the progress of one without noise,
    and a batch B needs 1 + φ / B updates for that progress. Summed over a training whose noise scale changes, the
    updates S(B) and the examples E(B) are again those of a single noise scale, its mean over the progress (McCandlish
    et al. 2018, whose Smin and Emin are integrals over the training):

        φ = sum w_i φ_i / sum w_i,    w_i = 1 / (1 + φ_i / B0)

    Far above B0 this is the harmonic mean. A value that is large, or infinite because the gradient could not be
    distinguished from 0, therefore counts for little: that part of the training makes little progress anyway.

    >>> mean_noise_scale([86, 86], 32), round(mean_noise_scale([86, 8844], 32)), mean_noise_scale([86, math.inf], 32)
    (86.0, 201, 204.0)
    """
    if all(math.isinf(value) for value in values):
        return math.inf
    progress = [base_batch / (base_batch + value) for value in values]
    # w φ is B0 - B0 w, which an infinite φ does not spoil.
    return sum(base_batch - base_batch * each for each in progress) / sum(progress)


def noise_of(profile: Profile, base_batch: float) -> PlanNoise | None:
    """Return the noise scale of the whole model, averaged over its measurements; None if none of them is finite.

    Its interval is the mean of the lower and that of the upper ends: the mean rises with each value.

    Args:
        profile: the measured task.
        base_batch: the global batch of one worker's training, in which it was measured.
    """
    usable = [one for one in profile.noise if one.group is None and one.value > 0]
    finite = [one for one in usable if math.isfinite(one.value)]
    if not finite:
        return None
    first, last = min(finite, key=lambda one: one.step), max(usable, key=lambda one: one.step)
    value, low, high = (
        mean_noise_scale([getattr(one, name) for one in usable], base_batch) for name in ("value", "low", "high")
    )
    return PlanNoise(
        value=value, first=first.value, low=low, high=high if math.isfinite(high) else None, step=last.step,
        epochs=last.epochs, source=last.source, last_low=last.low if math.isfinite(last.low) else None,
    )  # fmt: skip


def is_early(noise: PlanNoise, epochs: float) -> bool:
    """Tell whether a noise scale was measured too early in the training to choose a batch size by it."""
    return noise.epochs < EARLY * epochs
