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

Interval = Annotated[tuple[float, float], Rule("two batch sizes", lambda ends: 0 < ends[0] <= ends[1] < math.inf)]


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
    """5th and 95th percentile of the critical batch"""

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
