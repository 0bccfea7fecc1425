"""Grow the batch instead of decaying the learning rate, and train for more epochs.

Smith, Kindermans, Ying and Le 2017 (1711.00489): the noise of SGD is g ~ rate N / (B (1 - m)) for N examples and
momentum m. Dividing the rate by f and multiplying the batch by f reduce it equally; the larger batch needs f times
fewer updates, which more workers can compute in parallel. This holds while B << N: the paper stops near N/10. From
there on the rate is divided instead, as in the paper, so that the noise falls as far as it would have fallen:
:meth:`BatchGrowth.rate_factor`.

>>> growth = BatchGrowth(base_batch=128, factor=5, milestones=(60, 120, 160))
>>> [growth(epoch) for epoch in (0, 60, 120, 160)]
[128, 640, 3200, 16000]
>>> num_updates(growth, 200, num_examples=50_000), num_updates(128, 200, num_examples=50_000)
(28800, 78000)

All functions depend only on the epoch or on measured numbers, so that all workers change the batch at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rueda.errors import RecipeError


@dataclass(frozen=True)
class BatchGrowth:
    """The global batch as a function of the epoch: base_batch x factor^(milestones reached), up to a maximum.

    Args:
        base_batch: the global batch at the start.
        factor: growth at each milestone; 5 replaces a decay of the rate by 0.2.
        milestones: rising epochs.
        maximum: the largest global batch; None for no limit. The paper uses a tenth of the examples.

    >>> growth = BatchGrowth(base_batch=128, factor=5, milestones=(2, 4, 6), maximum=1280)
    >>> [growth(epoch) for epoch in (0, 2, 4, 6)]
    [128, 640, 1280, 1280]
    >>> [growth.rate_factor(epoch) for epoch in (0, 2, 4, 6)]  # the noise, rate / batch, falls 125-fold all the same
    [1.0, 1.0, 0.4, 0.08]
    """

    base_batch: int
    factor: float
    milestones: tuple[float, ...]
    maximum: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        rising = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        for what, expected, got, good in (
            ("base_batch", "a positive whole number", self.base_batch, self.base_batch >= 1),
            ("growth factor", "at least 1", self.factor, self.factor >= 1),
            ("milestones", "rising epochs", self.milestones, rising),
            ("maximum", "at least the base batch", self.maximum, (self.maximum or self.base_batch) >= self.base_batch),
        ):
            if not good:
                raise RecipeError(what, expected=expected, got=got, do="correct the batch growth")

    def __call__(self, epoch: float) -> int:
        """Return the global batch of an epoch (counted from 0)."""
        batch = round(self.unlimited(epoch))
        return batch if self.maximum is None else min(batch, self.maximum)

    def unlimited(self, epoch: float) -> float:
        """Return the global batch of an epoch if there were no maximum, and if a batch could have any size."""
        reached = sum(epoch >= milestone for milestone in self.milestones)
        batch = self.base_batch * float(self.factor) ** reached
        # A factor such as 64 ** (1 / 3) is not exact.
        return round(batch) if math.isclose(batch, round(batch)) else batch

    def rate_factor(self, epoch: float, batch: int | None = None) -> float:
        """Return the factor of the learning rate with which rate / batch falls by the whole factor of each milestone.

        Args:
            epoch: the epoch, counted from 0.
            batch: the global batch that is used, if it is not that of :meth:`__call__`, such as one that is divisible
                by the number of workers.
        """
        return (self(epoch) if batch is None else batch) / self.unlimited(epoch)

    def __str__(self) -> str:
        epochs = (-1.0, *self.milestones)
        sizes = " -> ".join(str(self(epoch)) for epoch in epochs)
        text = f"batch {sizes} at epochs {', '.join(f'{each:g}' for each in self.milestones)}"
        if self(epochs[-1]) == round(self.unlimited(epochs[-1])):
            return text
        return f"{text}, rate times {' -> '.join(f'{self.rate_factor(epoch):.3g}' for epoch in epochs)}"


def from_noise_scale(
    noise_scale: float,
    *,
    current_batch: int,
    multiple: int = 1,
    largest_growth: float = 2.0,
    maximum: int | None = None,
) -> int:
    """Choose the next global batch from a measured gradient noise scale (McCandlish et al. 2018, 1812.06162).

    At a batch equal to the noise scale, examples and updates are both used at half of their best efficiency. The batch
    grows towards the noise scale, by a limited factor since measurements are noisy, and never shrinks.

    Args:
        noise_scale: the measured noise scale, in examples; the batch is kept if it is not finite or not positive.
        current_batch: the current global batch.
        multiple: the batch stays a multiple of this, such as the number of workers.
        largest_growth: the largest factor of growth at a time.
        maximum: the largest global batch; None for no limit.

    >>> from_noise_scale(980, current_batch=256, multiple=8), from_noise_scale(300, current_batch=256, multiple=8)
    (512, 296)
    >>> from_noise_scale(100, current_batch=256), from_noise_scale(9e9, current_batch=256, maximum=400)
    (256, 400)
    """
    if not (math.isfinite(noise_scale) and noise_scale > 0):
        return current_batch
    wanted = min(noise_scale, current_batch * largest_growth, math.inf if maximum is None else maximum)
    return max(current_batch, int(wanted // multiple) * multiple)


class BatchSplit(NamedTuple):
    """A worker's part of a global batch: gradient accumulation over `accumulation` passes of `local_batch` examples."""

    local_batch: int
    accumulation: int


def split_batch(global_batch: int, num_workers: int, largest_local_batch: int | None = None) -> BatchSplit:
    """Split a global batch among workers whose memory holds `largest_local_batch` examples at a time.

    A worker's share of the batch is processed in equal passes, with as few passes as memory allows and at most twice
    as many if only these divide the share. If none of them does, or if the batch is not divisible by the number of
    workers, the nearest possible batch is returned.

    >>> split_batch(1024, 4), split_batch(1024, 4, 100)
    (BatchSplit(local_batch=256, accumulation=1), BatchSplit(local_batch=64, accumulation=4))
    >>> split_batch(1000, 3)  # 999 examples
    BatchSplit(local_batch=333, accumulation=1)
    """
    largest = math.inf if largest_local_batch is None else largest_local_batch
    if global_batch < num_workers or num_workers < 1 or largest < 1:
        raise RecipeError(
            "global batch",
            expected=f"at least one example for each of {num_workers} workers and room for one",
            got=(global_batch, largest_local_batch),
            do="use fewer workers or a larger batch",
        )
    share = round(global_batch / num_workers)
    fewest = 1 if largest_local_batch is None else math.ceil(share / largest_local_batch)
    for passes in range(fewest, 2 * fewest + 1):
        if share % passes == 0:
            return BatchSplit(share // passes, passes)
    return BatchSplit(min(round(share / fewest), int(largest)), fewest)


def num_updates(batch: Callable[[float], int] | int, epochs: int, *, num_examples: int) -> int:
    """Return the number of updates of a training that drops the incomplete last batch of each epoch.

    >>> num_updates(128, 1, num_examples=50_000)
    390
    """
    return sum(num_examples // (batch if isinstance(batch, int) else batch(epoch)) for epoch in range(epochs))


def stretch(epochs: int, milestones: tuple[float, ...], factor: float) -> tuple[int, tuple[float, ...]]:
    """Multiply epochs and milestones to keep the number of updates (regime adaptation, Hoffer et al. 2017).

    Args:
        epochs: epochs of the small batch; the result is rounded up.
        milestones: milestones of the small batch, in epochs.
        factor: large batch / small batch.

    >>> stretch(200, (60, 120, 160), 32)
    (6400, (1920, 3840, 5120))
    """
    if not factor > 0:
        raise RecipeError("stretch", expected="a factor > 0", got=factor, do="check the batch sizes")
    return math.ceil(epochs * factor - 1e-9), tuple(milestone * factor for milestone in milestones)
