"""The rules of a planned recipe: each with its reference, none of them found by search on the task at hand.

B0 is the global batch with which one worker trains well, B that of the plan, k = B / B0, φ the gradient noise scale. An
example in a batch of B contributes e = (φ + B0) / (φ + B) of what it does in one of B0 (:mod:`rueda.plan.noise`).

==================  ===================================================================================================
noise scale         φ is the mean over the measurements, each weighted by the progress that one worker makes in that
                    part of the training, which is near the harmonic mean (McCandlish et al. 2018): one large and
                    uncertain value does not make a large φ.
epochs              those of one worker / e, rounded up: as many updates as the table promises (McCandlish et al.
                    2018). Where φ is not known, those of one worker.
rate, SGD           x k e: each update replaces k e of one worker, and k e times fewer are made (the gain of AdaScale,
                    Johnson et al. 2020). Where φ is not known e = 1: the linear rule (Goyal et al. 2017).
rate, others        x sqrt(k e) for Adam and its variants, which divide by the gradient's size (Malladi et al. 2022;
                    AdaptDL, the code of Pollux, takes the same root of the gain)
betas of Adam       1 - beta is multiplied by k e, and is at most 1: the moving averages forget as fast in examples as
                    those of one worker, and are full after as large a share of the training (Malladi et al. 2022).
                    Their rule divides eps by sqrt(k) as well; a recipe has no eps, and torch's 1e-8 hardly matters.
optimizer           SGD becomes LARC, which limits the update of each layer to a fraction of its weights (You et al.
                    2017), unless the first updates at the larger rate are known to be stable: a network with batch
                    norm, whose output does not depend on the scale of its weights, or a noise scale of at least B from
                    the start.
warm-up             5 of 90 epochs, the share that Goyal et al. used, and at most 5 epochs: in a short training a
                    longer warm-up would waste updates of which there are few
cooldown            a constant rate is divided by ten for the last fifth: short updates at the end average the noise of
                    long ones away. It works as well as a cosine (Hägele et al. 2024) and keeps the rate high before.
                    Other schedules are kept.
largest batch       a training has at least 128 updates (Shallue et al. 2018: a CNN on Fashion-MNIST needs about 2^7 at
                    any batch). B <= φ + 2 B0, beyond which an example contributes less than half of what it does in
                    one worker's batch, with the lower end of the interval of φ: what is not known well enough to
                    exclude a small φ does not justify a large batch.
                    Where φ was measured in the first tenth of the training, and so is only a lower bound, B <= 8 B0 as
                    well, and no local batch above that of one worker. Where φ is not known, B <= 2 B0: 8 B0 lost on 6
                    of the 8 development tasks that are not SGD with batch norm. B0 itself is always allowed.
batch growth        instead of the cooldown, by whole factors at the quarters of the epochs: it lowers the noise of SGD
                    as a falling rate does (Smith et al. 2017). It starts at B0, or at the first φ where that is larger,
                    and ends at φ + 2 B0 by the lower end of the last φ, since φ grows; at 8 B0 at most where φ is
                    early. Where φ is not known, it starts at up to 2 B0 and ends at 8 B0. It ends at a tenth of the
                    examples at most, the paper's limit, and at B0 on every worker. Its epochs are those in which the e
                    of all batches add up to one worker's. Growth of less than 4 times would anneal less than the
                    cooldown that it replaces, so it is not used. It is taken if it is faster than a constant batch,
                    which is rare where φ is known.
                    Only for SGD with batch norm: on the development tasks, with one worker's epochs and 8-fold growth,
                    three of three such tasks kept the result. Without batch norm products (AdamW) lost 14.7 points,
                    chapters 2.4, arrows (AdamW) 1.1 and planes-regression 5 % of the loss; with batch norm and Adam
                    places-regression lost 17 %.
batch norm          statistics over at least as many examples as one worker has: ghost batches of that size where the
                    local batch is larger (Hoffer et al. 2017), synchronised statistics, over the whole global batch,
                    where it is smaller (Wu and He 2018: the error of batch norm rises as the batch of a worker
                    shrinks). They are recalibrated before each evaluation if the largest batch exceeds one worker's:
                    running averages lag behind few and long updates.
==================  ===================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rueda.optim.batch_growth import BatchGrowth
from rueda.records.plan import PlanNoise

FEWEST_UPDATES = 128
"""the fewest updates that a training may have: a batch that leaves fewer is not chosen"""
MOST_SCALE = 8
"""the largest B / B0 where the noise scale is early, and at the end of growth where it is not known"""
UNKNOWN_SCALE = 2
"""the largest B / B0 from the start where the noise scale is not known"""
WARMUP_SHARE = 5 / 90
WARMUP_EPOCHS = 5.0
COOLDOWN = 0.2
"""the share of the epochs at a tenth of the rate"""
LEAST_GROWTH = 4
"""the smallest final batch / first batch for which the batch grows"""
LINEAR = ("sgd", "larc")
"""optimizers whose step is the gradient times the rate"""
ADAM = ("adam", "adamw")
ADAM_BETAS = (0.9, 0.999)
"""what torch's Adam uses where a recipe names no others"""


def epochs_needed(epochs: int, worth: float | None) -> int:
    """Return the epochs in which a batch makes the progress of one worker, if an example contributes ``worth``.

    A missing tenth of an epoch is not made up for by a whole one.

    >>> epochs_needed(10, 0.75), epochs_needed(10, None), epochs_needed(10, 1.2), epochs_needed(10, 0.995)
    (14, 10, 10, 10)
    """
    return epochs if worth is None or worth >= 1 else math.ceil(epochs / worth - 0.1)


def rate_scaling(optimizer: str) -> str:
    """Return the scaling rule of the rate of an optimizer.

    >>> rate_scaling("sgd"), rate_scaling("adamw")
    ('linear', 'sqrt')
    """
    return "linear" if optimizer in LINEAR else "sqrt"


def rate_correction(optimizer: str, worth: float | None) -> float:
    """Return the factor of the rate beside k or sqrt(k): e, or sqrt(e) for Adam and its variants.

    >>> rate_correction("sgd", 0.25), rate_correction("adam", 0.25), rate_correction("sgd", None)
    (0.25, 0.5, 1.0)
    """
    if worth is None or worth >= 1:
        return 1.0
    return worth if optimizer in LINEAR else math.sqrt(worth)


def scaled_betas(optimizer: str, betas: Sequence[float], gain: float) -> tuple[float, ...]:
    """Return the decays of Adam's moving averages, which forget as fast in examples as those of one worker.

    Each update replaces ``gain`` = k e updates of one worker: 1 - beta is multiplied by it, and is at most 1 (Malladi
    et al. 2022). Other optimizers keep theirs.

    >>> scaled_betas("adam", (), 4.0), scaled_betas("adamw", (0.9, 0.95), 16.0), scaled_betas("lamb", (), 4.0)
    ((0.6, 0.996), (0.0, 0.2), ())
    """
    if optimizer not in ADAM or gain <= 1:
        return tuple(betas)
    return tuple(round(max(0.0, 1 - gain * (1 - beta)), 6) for beta in betas or ADAM_BETAS)


def largest_batch(noise: PlanNoise, base_batch: int) -> float:
    """Return the batch up to which an example contributes at least half of what it does in one worker's batch.

    e = (φ + B0) / (φ + B) >= 1/2 for B <= φ + 2 B0, with the lower end of the interval of φ.

    >>> noise = PlanNoise(value=300, first=200, low=130, high=None, step=256, epochs=2.0, source="halves")
    >>> largest_batch(noise, 32)
    194
    """
    return (noise.value if noise.low is None else noise.low) + 2 * base_batch


def growth_range(noise: PlanNoise | None, base_batch: int, *, is_early: bool) -> tuple[float, float]:
    """Return the largest first and the largest final batch of a batch that grows.

    The first one is one worker's batch, or the first noise scale; twice one worker's, which two workers of its local
    batch would make, where the noise scale is not known. The final one is what the lower end of the last noise
    scale bears: later ones are larger. Where the noise scale is early or not known, it is at most 8 times one worker's.

    >>> noise = PlanNoise(value=300, first=90, low=130, last_low=400, high=None, step=9, epochs=2.0, source="halves")
    >>> growth_range(noise, 32, is_early=False), growth_range(noise, 32, is_early=True)
    ((90, 464), (90, 256))
    >>> growth_range(None, 32, is_early=True)
    (64, 256)
    """
    if noise is None:
        return UNKNOWN_SCALE * base_batch, MOST_SCALE * base_batch
    low = noise.low if noise.last_low is None else noise.last_low
    last = (noise.value if low is None else low) + 2 * base_batch
    return max(base_batch, noise.first), min(last, MOST_SCALE * base_batch) if is_early else last


def growth_epochs(
    growth: Callable[[int], BatchGrowth | None], worth: Callable[[int, int], float], epochs: int
) -> int | None:
    """Return the epochs in which a growing batch makes the progress of one worker: their worths add up to its epochs.

    Args:
        growth: the growth over a number of epochs; None if it is not worth it.
        worth: what an example contributes in an epoch and a batch, relative to one worker's batch.
        epochs: those of one worker.

    >>> growth_epochs(lambda epochs: BatchGrowth(64, 8, (epochs / 2,)), lambda _, batch: 0.5 if batch > 64 else 1.0, 12)
    16
    """
    for length in range(epochs, 100 * epochs):
        found = growth(length)
        if found is None:
            return None
        if sum(min(1.0, worth(epoch, found(epoch))) for epoch in range(length)) >= epochs - 0.1:
            return length
    return None


def warmup_epochs(epochs: int) -> float:
    """Return the length of the warm-up.

    >>> warmup_epochs(18), warmup_epochs(300)
    (1.0, 5.0)
    """
    return round(min(WARMUP_EPOCHS, WARMUP_SHARE * epochs), 3)


def growth_to(first: int, largest: float, epochs: int) -> BatchGrowth | None:
    """Return the growth from a batch to at most another by equal whole factors; None if it is not worth it.

    >>> print(growth_to(64, 4096, 20), growth_to(64, 300, 20), growth_to(64, 200, 20), sep="; ")
    batch 64 -> 256 -> 1024 -> 4096 at epochs 5, 10, 15; batch 64 -> 128 -> 256 at epochs 10, 15; None
    """
    quarters = tuple(max(1, round(epochs * quarter / 4)) for quarter in (1, 2, 3))
    if largest < LEAST_GROWTH * first or epochs < 4:
        return None
    factor = math.floor((largest / first) ** (1 / 3) + 1e-9)
    return BatchGrowth(first, factor, quarters) if factor > 1 else BatchGrowth(first, 2, quarters[1:])
