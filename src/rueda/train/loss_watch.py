"""Notices an exploding loss while it is still finite.

The loss of each update is compared with its running mean. A loss of ten times the mean is reported, unless it is still
far below the loss of the first update: near an exact fit, single hard batches differ by such factors without harm. A
learning rate that is far too high raises the loss within the first few updates, and the mean with it; until the mean
covers many updates, the loss is therefore compared with that of the first update as well. A training that is resumed
begins anew with both, but what counts as far below the first loss is known from the rows of its run: it may be near an
exact fit, where the first update since then is no measure.
"""

from __future__ import annotations

import math

from rueda.terminal.numbers import digits

FACTOR = 10.0
"""how many times the running mean a loss must be"""
FRACTION_OF_FIRST = 0.1
"""a loss below this fraction of the first update's does not count as exploding"""
MEMORY = 50
"""updates over which the running mean is taken"""
FEWEST = 10
"""updates before the first comparison"""
FEWEST_EXAMPLES = 8
"""examples, or tokens, of the first update for its loss to be compared with; that of a few may be small by chance"""


class LossWatch:
    """Compares each update's loss with the running mean of the losses before.

    Args:
        is_resumed: whether updates were made before those that it sees.
        former: the loss of the training's first epoch, if it is resumed and this is known.

    >>> watch, total = LossWatch(), 0.0
    >>> for step in range(1, 31):
    ...     total += 2.0 if step < 30 else 45.0
    ...     line = watch.take(total, float(step), step)
    >>> line
    'update 30: the loss is 45, 22 times its running mean of 2; lower the learning rate, warm up, or clip the gradients'
    """

    def __init__(self, *, is_resumed: bool = False, former: float | None = None) -> None:
        self._named = "the first update since the training was resumed" if is_resumed else "the first update"
        self._former = former if former is not None and math.isfinite(former) else 0.0
        self._mean: float | None = None
        self._first = 0.0
        self._first_counts = False
        self._num_taken = 0
        self._is_high = False
        self.forget_sums()

    def forget_sums(self) -> None:
        """Begin anew with sums that start at zero, as an epoch does."""
        self._sum = self._weight = 0.0

    def take(self, total: float, weight: float, step: int) -> str | None:
        """Take the sums of an epoch so far; return a line if the loss since the last call has exploded.

        Args:
            total: the sum of the losses.
            weight: what they are averaged over.
            step: the number of updates so far.
        """
        if total < self._sum and weight < self._weight:
            self.forget_sums()
        loss = (total - self._sum) / (weight - self._weight) if weight > self._weight else math.nan
        self._sum, self._weight = total, weight
        if not math.isfinite(loss):
            return None
        before, self._num_taken = self._mean, self._num_taken + 1
        if before is None:
            self._mean = self._first = loss
            self._first_counts = weight >= FEWEST_EXAMPLES
            return None
        usual, of = before, "its running mean of"
        if self._first_counts and self._first < before and self._num_taken <= MEMORY:
            usual, of = self._first, f"that of {self._named},"
        least = FRACTION_OF_FIRST * max(self._first, self._former)
        is_high = self._num_taken > FEWEST and usual > 0 and loss > FACTOR * usual and loss > least
        if is_high and not self._is_high:
            self._is_high = True
            return (
                f"update {step:,}: the loss is {loss:.4g}, {digits(loss / usual, 2)} times {of} {usual:.4g}; "
                "lower the learning rate, warm up, or clip the gradients"
            )
        if not is_high:
            self._is_high = False
            self._mean = before + (loss - before) / min(self._num_taken, MEMORY)
        return None
