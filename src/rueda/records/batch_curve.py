"""The curve of updates against batch size, and the three regimes of batch scaling that follow from it.

McCandlish et al. 2018 (1812.06162): with S updates and E = S B examples to reach a target,

    (S / Smin - 1) (E / Emin - 1) = 1,    so    S(B) = Smin (1 + Bcrit / B),    Bcrit = Emin / Smin

Smin is the smallest number of updates at any batch size, Emin the smallest number of examples; at Bcrit training needs
twice as many of both. On logarithmic axes the curve falls with the slope Bcrit / (B + Bcrit): 1 where twice the batch
halves the updates, 0 where it saves none.

Shallue et al. 2018 (1811.03600) name three regimes and give no numbers: *perfect scaling*, *diminishing returns* and
*maximal parallelism*. Here the first lasts while the slope is 0.9 or more (B <= Bcrit / 9) and the last begins where it
is 0.1 or less (B >= 9 Bcrit). At the first boundary training takes 1/9 more examples than the fewest, at the second 1/9
more updates than the fewest; a slope of 0.8 would call a quarter more examples perfect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from rueda.records.json_record import Positive, Rule

REGIMES = ("perfect scaling", "diminishing returns", "maximal parallelism")
BOUNDARY = 9.0
"""perfect scaling ends at Bcrit / 9 (slope 0.9), maximal parallelism begins at 9 Bcrit (slope 0.1)"""


def _ordered(ends: tuple[float | None, float | None]) -> bool:
    low, high = (0.0 if ends[0] is None else ends[0]), (math.inf if ends[1] is None else ends[1])
    return 0 <= low <= high and 0 not in ends and math.inf not in ends


Interval = Annotated[tuple[float | None, float | None], Rule("two batch sizes", _ordered)]


@dataclass(frozen=True, kw_only=True)
class BatchCurve:
    """A fitted curve S(B) = Smin (1 + Bcrit / B), with the interval of its critical batch.

    >>> curve = BatchCurve(smallest_updates=100.0, smallest_examples=4e4, critical_batch=400.0, interval=(300.0, 500.0))
    >>> curve.updates(400), curve.regime(16), curve.regime(400), curve.boundaries
    (200.0, 'perfect scaling', 'diminishing returns', (44.44444444444444, 3600.0))
    """

    smallest_updates: Positive
    smallest_examples: Positive
    critical_batch: Positive
    interval: Interval
    """90 % interval of the critical batch; None: the points are fitted as well without an end on that side"""
    lack_of_fit: float | None = None
    """p-value of the test that the batch sizes scatter about the curve no more than seeds do; None: one seed each"""

    @property
    def interval_text(self) -> str:
        """The interval in words.

        >>> curve = BatchCurve(smallest_updates=1.0, smallest_examples=9.0, critical_batch=9.0, interval=(4.0, None))
        >>> curve.interval_text
        'at least 4'
        """
        low, high = (None if end is None else f"{end:,.0f}" for end in self.interval)
        if low is None or high is None:
            return f"at most {high}" if high else f"at least {low}" if low else "unknown"
        return f"{low} to {high}"

    def updates(self, batch: float) -> float:
        """Return the number of updates that a training with this batch size needs."""
        return self.smallest_updates * (1 + self.critical_batch / batch)

    @property
    def boundaries(self) -> tuple[float, float]:
        """The largest batch of perfect scaling, and the smallest of maximal parallelism."""
        return self.critical_batch / BOUNDARY, self.critical_batch * BOUNDARY

    def regime(self, batch: float) -> str:
        """Return the name of the regime of a batch size."""
        perfect, maximal = self.boundaries
        return REGIMES[0] if batch <= perfect else REGIMES[2] if batch >= maximal else REGIMES[1]
