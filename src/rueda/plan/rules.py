"""The rules of a planned recipe: each with its reference, none of them found by search on the task at hand.

B0 is the global batch with which one worker trains well, B that of the plan, k = B / B0, φ the gradient noise scale. An
example in a batch of B contributes e = (φ + B0) / (φ + B) of what it does in one of B0 (:mod:`rueda.plan.noise`).

==================  ===================================================================================================
epochs              those of one worker / e, rounded up: as many updates as the table promises (McCandlish et al.
                    2018). Where φ is not known, those of one worker.
rate, SGD           x k e: each update replaces k e of one worker, and k e times fewer are made (the gain of AdaScale,
                    Johnson et al. 2020). Where φ is not known e = 1: the linear rule (Goyal et al. 2017).
rate, others        x sqrt(k e) for Adam and its variants, which divide by the gradient's size (Malladi et al. 2022;
                    AdaptDL, the code of Pollux, takes the same root of the gain)
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
                    any batch). B <= φ, the critical batch size: beyond it an example contributes less than half.
                    Where φ is not known, or was measured in the first tenth of the training and so is only a lower
                    bound, B <= 8 B0, and no local batch above that of one worker. B0 itself is always allowed.
batch growth        if the workers, at the local batch of one worker, would make a larger batch than the start bears:
                    the batch grows by whole factors at the quarters of the epochs instead of the cooldown, which
                    lowers the noise of SGD as a falling rate does (Smith et al. 2017). It ends at φ, or, where φ is
                    not known or early, at a tenth of the examples, the paper's limit. Growth of less than 4 times
                    would anneal less than the cooldown that it replaces, so it is not used. Only with batch norm:
                    without it the study of CIFAR-10 lost 5.6 points at 8 workers and 10.0 at 64 by growth.
batch norm          statistics over about as many examples as one worker has: ghost batches of that size where the
                    local batch is larger (Hoffer et al. 2017); synchronised statistics where it has fewer than 16
                    examples and one worker has more (Wu and He 2018: the error of batch norm rises fast as the batch
                    of a worker shrinks from 16 to 2). They are recalibrated before each evaluation: running averages
                    lag behind few and long updates.
==================  ===================================================================================================
"""

from __future__ import annotations

import math

from rueda.optim.batch_growth import BatchGrowth

FEWEST_UPDATES = 128
"""the fewest updates that a training may have: a batch that leaves fewer is not chosen"""
MOST_SCALE = 8
"""the largest B / B0 where the noise scale is not known or early"""
WARMUP_SHARE = 5 / 90
WARMUP_EPOCHS = 5.0
COOLDOWN = 0.2
"""the share of the epochs at a tenth of the rate"""
LEAST_GROWTH = 4
"""the smallest final batch / first batch for which the batch grows"""
FEWEST_STATISTICS = 16
"""examples below which the statistics of batch norm are synchronised"""
LINEAR = ("sgd", "larc")
"""optimizers whose step is the gradient times the rate"""


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
