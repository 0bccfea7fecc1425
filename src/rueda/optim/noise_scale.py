"""The gradient noise scale: the batch size beyond which further examples add little information.

McCandlish, Kaplan, Amodei and the OpenAI Dota Team, *An Empirical Model of Large-Batch Training*, 2018 (1812.06162).
The gradient of one example has the mean G and a covariance with trace S; that of a batch of B examples has the trace
S/B. At B = S / |G|² the noise equals the signal: far below, doubling the batch halves the number of updates; far above,
it saves hardly any::

    B_simple = S / |G|²

**One step.** The gradients g_i of n parts of b examples and their mean g give unbiased estimates of both (the paper's
formulas for a small batch b and a large one n b; see :func:`rueda.optim.meters.moments`)::

    S_t    = b (sum |g_i|² - n |g|²) / (n - 1)
    |G|²_t = |g|² - S_t / (n b)

**Many steps.** One step says little: if the batch is small, |G|²_t is negative nearly as often as positive. S and |G|²
are averaged separately and then divided; a mean of ratios would be biased, and often infinite. The weights change
meanwhile, so the result describes the part of the training over which it was averaged: all of it or, with ``memory``,
an exponential moving average over the last steps.

**The interval.** Both averages come from the same steps and are correlated. Given the weights, the errors of two steps
are independent, since each draws its own examples; the drift of S and |G|² themselves is not an error. So the
covariance of the errors is estimated from differences of neighbouring steps, d d' / 2 (von Neumann 1941), in which slow
drift cancels, and the interval of |G|²/S is Fieller's (1954): all r with

    (|G|² - r S)² <= t² var(|G|² - r S)

with Student's t at 2/3 as many degrees of freedom as there are steps, since neighbouring differences are correlated. B
is 1/r. If |G|² cannot be distinguished from 0, the upper end of the interval is infinite.

The measured gradient is the one that is averaged. With multiplicative gradient noise it is the noisy one, whose S is
larger by a factor of about 1 + sigma²; clipping, weight decay and additive noise come later and have no influence.
"""

from __future__ import annotations

import math
from typing import Any

from rueda.errors import RecipeError
from rueda.optim.meters import moments
from rueda.records.profile import NoiseScale


class Estimator:
    """Averages S and |G|² over steps and estimates their ratio with an interval.

    Args:
        memory: length of the moving average, in steps (its decay is 1 - 1/memory); None: all steps count equally.
        confidence: confidence level of the interval.

    >>> estimator = Estimator()
    >>> for big in (3.0, 3.3, 2.6, 3.1):              # |g|² of 2 parts of 8 examples, whose |g_i|² are 5 and 5
    ...     _ = estimator.observe(10.0, big, num_parts=2, examples_per_part=8)
    >>> found = estimator.estimate(step=4)
    >>> found.variance, found.square, found.value
    (32.0, 1.0, 32.0)
    >>> found.low < 32 < found.high, found.steps
    (True, 4)
    """

    def __init__(self, memory: int | None = None, *, confidence: float = 0.95) -> None:
        for what, expected, got, good in (
            ("memory", "None, or at least 2 steps", memory, memory is None or memory >= 2),
            ("confidence", "between 0 and 1", confidence, 0 < confidence < 1),
        ):
            if not good:
                raise RecipeError(f"noise scale: {what}", expected=expected, got=got, do="correct it")
        from scipy.special import stdtrit  # imported here, since it would delay the first step of a training

        self._quantile = stdtrit
        self.memory, self.confidence = memory, confidence
        self.num_steps = 0
        """steps observed so far"""
        self._last: tuple[float, float] | None = None
        self._sums = [0.0, 0.0]  # of S and |G|², each step with its weight w
        self._products = [0.0, 0.0, 0.0]  # of w² d d' / 2: S S, S G, G G
        self._weights = [0.0, 0.0, 0.0, 0.0]  # of w and w²; of the w² and w⁴ of the differences

    def observe(
        self, sum_local_square_norms: float, mean_square_norm: float, num_parts: int, examples_per_part: float
    ) -> bool:
        """Add the norms of one step: sum |g_i|² over the parts, and |g|² of their mean.

        The batch may differ from step to step. Norms that are not finite (an overflow in mixed precision) are ignored,
        and False is returned.
        """
        if num_parts < 2 or not examples_per_part > 0:
            raise RecipeError(
                "noise scale",
                expected="at least 2 parts with examples in each",
                got=(num_parts, examples_per_part),
                do="compare the gradients of two workers, micro-batches or halves of a batch",
            )
        variance, square = moments(float(sum_local_square_norms), float(mean_square_norm), num_parts)
        variance *= examples_per_part
        if not (math.isfinite(variance) and math.isfinite(square)):
            return False
        decay = 1.0 if self.memory is None else 1.0 - 1.0 / self.memory
        self._sums = [decay * total + new for total, new in zip(self._sums, (variance, square), strict=True)]
        difference = None if self._last is None else (variance - self._last[0], square - self._last[1])
        ones = (1.0, 1.0, *((0.0, 0.0) if difference is None else (1.0, 1.0)))
        powers = (decay, decay**2, decay**2, decay**4)
        self._weights = [p * w + new for p, w, new in zip(powers, self._weights, ones, strict=True)]
        s, g = difference or (0.0, 0.0)
        products = (s * s / 2, s * g / 2, g * g / 2)
        self._products = [decay**2 * old + new for old, new in zip(self._products, products, strict=True)]
        self._last = (variance, square)
        self.num_steps += 1
        return True

    def estimate(
        self, *, step: int, epochs: float = 0.0, source: str = "workers", group: str | None = None
    ) -> NoiseScale:
        """Return the current estimate; ``step``, ``epochs``, ``source`` and ``group`` are recorded with it."""
        weight, squares = self._weights[:2]
        variance, square = (total / weight if weight else math.nan for total in self._sums)
        low, high = self._interval(variance, square)
        return NoiseScale(
            value=_ratio(variance, square),
            low=low,
            high=high,
            confidence=self.confidence,
            variance=variance,
            square=square,
            step=step,
            steps=round(weight**2 / squares) if squares else 0,
            epochs=epochs,
            source=source,
            group=group,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the averages as plain numbers."""
        return {
            "num_steps": self.num_steps,
            "last": None if self._last is None else list(self._last),
            "sums": list(self._sums),
            "products": list(self._products),
            "weights": list(self._weights),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state exactly."""
        self.num_steps, self._last = state["num_steps"], state["last"]
        self._sums, self._products, self._weights = (list(state[name]) for name in ("sums", "products", "weights"))

    def _interval(self, variance: float, square: float) -> tuple[float, float]:
        """Return the reciprocals of the ends of Fieller's interval of |G|²/S."""
        weight, squares, differences, fourths = self._weights
        if differences == 0.0 or not variance > 0.0:
            return 0.0, math.inf
        # There is one difference fewer than steps; each product estimates the squared error of one step.
        scale = squares / differences / weight**2
        freedom = max(2.0 / 3.0 * differences**2 / fourths, 0.5)
        t2 = float(self._quantile(freedom, 0.5 + self.confidence / 2)) ** 2 * scale
        ss, sg, gg = (t2 * product for product in self._products)
        a, b, c = variance**2 - ss, variance * square - sg, square**2 - gg
        if a <= 0.0:  # S itself cannot be distinguished from 0
            return 0.0, math.inf
        root = math.sqrt(max(b * b - a * c, 0.0))
        least, most = (b - root) / a, (b + root) / a
        return _ratio(1.0, most), _ratio(1.0, least)


def _ratio(variance: float, square: float) -> float:
    """Return S / |G|²; infinite if only S is positive, NaN if neither is."""
    if square > 0.0:
        return variance / square
    return math.inf if variance > 0.0 else math.nan
