"""The comparison of two rows of a study: the change of the metric, its interval, and a verdict of three values.

A change is *kept* or *lost* only if the whole of its 90 % interval (:mod:`rueda.records.welch`) says so; otherwise it
is *undecided*, and the comparison says how many seeds would decide it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rueda.records.metric import MetricInfo
from rueda.records.welch import Sample, half_width, values_to_decide


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How much a row differs from another."""

    change: float | None = None
    """in points for a fraction, otherwise in percent of the other row's value; None if one of them has no value"""
    interval: tuple[float, float] | None = None
    """the 90 % interval of the change; None: a row has one seed, and no spread could be borrowed"""
    verdict: str | None = None
    """``kept``, ``lost`` or ``undecided``; None without a change"""
    seeds_to_decide: int | None = None
    """seeds of both rows that would most likely decide; None: it is decided, more than 100, or no spread is known"""
    is_pooled: bool = False
    """the spread of a row with one seed is that of the study's other rows"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The metric of a row: its mean over seeds, and the spread if there are several."""

    value: float | None
    spread: float | None
    num_seeds: int

    @property
    def has_spread(self) -> bool:
        """Whether the row has a spread of its own."""
        return self.num_seeds > 1 and self.spread is not None and math.isfinite(self.spread)

    def sample(self, shared: tuple[float, int] | None) -> Sample | None:
        """Return the mean with its own deviation, or else with the shared one, if there is one."""
        if self.value is None or not math.isfinite(self.value):
            return None
        if self.has_spread and self.spread is not None:
            return Sample(mean=self.value, deviation=self.spread, count=self.num_seeds, freedom=self.num_seeds - 1)
        if shared is None:
            return None
        count = max(1, self.num_seeds)
        return Sample(mean=self.value, deviation=shared[0], count=count, freedom=shared[1], is_pooled=True)


def are_tied(row: Measured, base: Measured) -> bool:
    """Return whether the seeds of both rows agree exactly, so that no spread is known."""
    return row.has_spread and base.has_spread and row.spread == base.spread == 0


def compare(
    row: Measured, base: Measured, metric: MetricInfo, tolerance: float, shared: tuple[float, int] | None = None
) -> Comparison:
    """Compare a row with another.

    The change of a metric that is no fraction is r = 100 (a / b - 1); to first order its error is that of
    100 (a - (a / b) b') / b with the ratio a / b held fixed.

    Args:
        row: the metric of the row.
        base: that of the row with which it is compared.
        metric: which metric it is.
        tolerance: how much worse is still kept: 0.01 is a point, or one percent.
        shared: for a row of one seed, a deviation and its degrees of freedom (:func:`rueda.records.welch.pooled`). It
            is also used if the seeds of both rows agree exactly, which happens by chance on small test sets: two
            spreads of 0 would make an interval without a length.

    >>> from rueda.records.metric import ACCURACY
    >>> one = Measured(value=0.9, spread=0.003, num_seeds=3)
    >>> found = compare(Measured(value=0.885, spread=0.012, num_seeds=3), one, ACCURACY, 0.01)
    >>> found.change, [round(end, 1) for end in found.interval], found.verdict, found.seeds_to_decide
    (-1.5, [-3.4, 0.4], 'undecided', 40)
    """
    change = metric.change(row.value, base.value)
    if change is None or not math.isfinite(change) or row.value is None or base.value is None:
        return Comparison(change=change, verdict=None if change is None else "undecided")
    first, second = ((replace(one, spread=None) if are_tied(row, base) else one).sample(shared) for one in (row, base))
    if first is None or second is None:
        return Comparison(change=change, verdict="undecided")
    slope, unit = (1.0, 100.0) if metric.percent else (row.value / base.value, 100 / abs(base.value))
    half = unit * half_width(first, second, slope)
    # A positive value cannot fall by more than 100 %.
    least = -math.inf if metric.percent or min(row.value, base.value) <= 0 else -100.0
    interval = round(max(least, change - half), 6), round(change + half, 6)
    verdict = metric.judge(interval, tolerance)
    seeds = None
    if verdict == "undecided":
        distance = (metric.score(change) + 100 * tolerance) / unit
        seeds = values_to_decide(first, second, distance, slope)
    return Comparison(
        change=change, interval=interval, verdict=verdict, seeds_to_decide=seeds,
        is_pooled=first.is_pooled or second.is_pooled,
    )  # fmt: skip
