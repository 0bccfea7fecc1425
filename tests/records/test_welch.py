"""Welch's interval against scipy's, and by simulation: how often intervals cover the truth and verdicts are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from rueda.records.comparison import Comparison, Measured, compare
from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.records.welch import CONFIDENCE, Sample, half_width, pooled, values_to_decide

PAIRS = 4000
"""simulated studies of a case; the binomial error of a share of 90 % of them is 0.5 points"""


def measured(values: np.ndarray) -> Measured:
    return Measured(value=float(values.mean()), spread=float(values.std(ddof=1)), num_seeds=len(values))


@pytest.mark.parametrize("counts", [(2, 2), (3, 3), (5, 3), (3, 20)])
def test_the_interval_is_that_of_scipy(counts: tuple[int, int]) -> None:
    random = np.random.default_rng(sum(counts))
    first, second = (
        random.normal(0.9, deviation, count) for deviation, count in zip((0.01, 0.03), counts, strict=True)
    )
    found = compare(measured(first), measured(second), ACCURACY, 0.01).interval
    known = stats.ttest_ind(first, second, equal_var=False).confidence_interval(CONFIDENCE)
    assert found == pytest.approx((100 * known.low, 100 * known.high), abs=1e-5)


def test_the_pooled_deviation_is_that_of_an_analysis_of_variance() -> None:
    random = np.random.default_rng(0)
    groups = [random.normal(size=count) for count in (3, 3, 5)]
    found = pooled([(float(group.std(ddof=1)), len(group)) for group in groups])
    within = sum(((group - group.mean()) ** 2).sum() for group in groups) / 8
    assert found == (pytest.approx(math.sqrt(within)), 8)
    for scale, is_pooled in ((1.0, True), (30.0, False)):
        groups[2] = scale * groups[2]
        p = stats.bartlett(*groups).pvalue
        assert (p >= 0.05) == is_pooled
        assert (pooled([(float(group.std(ddof=1)), len(group)) for group in groups]) is not None) == is_pooled


def simulate(true: float, one: int, other: int, deviations: tuple[float, float], rows: int = 0) -> list[Comparison]:
    """Compare a row with a base of 90 %, which truly differ by ``true`` points, in thousands of made studies.

    Args:
        true: the true difference in points.
        one: seeds of the row.
        other: seeds of the base.
        deviations: those of the row and of the base, in points.
        rows: further rows of 3 seeds with the row's deviation, whose spread is pooled with the base's.
    """
    random = np.random.default_rng(7)
    found = []
    for _ in range(PAIRS):
        row, base = (
            random.normal(mean, deviation / 100, count)
            for mean, deviation, count in ((0.9 + true / 100, deviations[0], one), (0.9, deviations[1], other))
        )
        more = [(float(random.normal(0, deviations[0] / 100, 3).std(ddof=1)), 3) for _ in range(rows)]
        known = [(float(values.std(ddof=1)), len(values)) for values in (row, base) if len(values) > 1]
        shared = pooled([*known, *more]) if min(one, other) == 1 else None
        first, second = (
            Measured(value=float(values.mean()), spread=None, num_seeds=1) if len(values) == 1 else measured(values)
            for values in (row, base)
        )
        found.append(compare(first, second, ACCURACY, 0.01, shared))
    return found


CASES: dict[str, tuple[int, int, tuple[float, float], int]] = {
    "3 and 3": (3, 3, (1.0, 0.5), 0),
    "2 and 3": (2, 3, (1.0, 1.0), 0),
    "5 and 3": (5, 3, (1.0, 0.7), 0),
    "3 and 5": (3, 5, (1.5, 1.0), 0),
    "1 and 3, pooled": (1, 3, (1.0, 1.0), 5),
    "1 and 1, pooled": (1, 1, (1.0, 1.0), 5),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_intervals_cover_the_truth_and_verdicts_are_wrong_once_in_twenty(
    case: tuple[int, int, tuple[float, float], int],
) -> None:
    num_row, num_base, deviations, rows = case
    found = simulate(-1.0, num_row, num_base, deviations, rows)
    known = [one.interval for one in found if one.interval is not None]
    assert len(known) >= (0.9 if rows else 1) * PAIRS  # where the spreads seem unequal by chance, none is borrowed
    assert len(known) == PAIRS or rows
    covered = sum(low <= -1.0 <= high for low, high in known) / len(known)
    assert covered == pytest.approx(CONFIDENCE, abs=0.03), covered

    # The true loss is the tolerance: kept or lost, a verdict is wrong.
    verdicts = [one.verdict for one in found]
    error = 3 * math.sqrt(0.05 * 0.95 / PAIRS)
    for verdict in ("kept", "lost"):
        assert verdicts.count(verdict) / PAIRS <= 0.05 + error, (verdict, verdicts.count(verdict) / PAIRS)


def test_a_difference_of_two_points_is_not_kept_by_chance() -> None:
    """The rule of point estimates called a true loss of 2 points kept, and a true 0 lost, in 22 % of these cases."""
    for true, wrong in ((-2.0, "kept"), (0.0, "lost")):
        found = simulate(true, 1, 3, (1.1, 1.1), rows=5)
        share = sum(one.verdict == wrong for one in found) / PAIRS
        assert share <= 0.02, (true, share)
        assert sum(abs((one.change or 0) - true) > 1 for one in found) / PAIRS > 0.3  # the estimates are that far off


def test_intervals_of_a_loss_are_relative_to_the_base() -> None:
    """The ratio of two means, by the delta method, against the truth in a simulation."""
    random, covered = np.random.default_rng(3), 0
    for _ in range(PAIRS):
        row, base = measured(random.normal(3.0, 0.1, 4)), measured(random.normal(2.0, 0.1, 4))
        interval = compare(row, base, LOSS, 0.01).interval
        assert interval is not None
        covered += interval[0] <= 50.0 <= interval[1]
    assert covered / PAIRS == pytest.approx(CONFIDENCE, abs=0.03)


@pytest.mark.parametrize("distance", [1.0, 1.6, 2.5])
def test_the_seeds_that_are_asked_for_decide_four_times_of_five(distance: float) -> None:
    sample = Sample(mean=0.0, deviation=1.0, count=3, freedom=2)
    wider = Sample(mean=0.0, deviation=1.5, count=3, freedom=2)
    count = values_to_decide(sample, wider, distance)
    assert count is not None

    def decided(count: int) -> float:
        random, found = np.random.default_rng(11), 0
        for _ in range(2000):
            first, second = random.normal(distance, 1.0, count), random.normal(0, 1.5, count)
            samples = [
                Sample(mean=float(one.mean()), deviation=float(one.std(ddof=1)), count=count, freedom=count - 1)
                for one in (first, second)
            ]
            found += samples[0].mean - samples[1].mean > half_width(*samples)
        return found / 2000

    assert decided(count) >= 0.75 and decided(count - 1) <= 0.82


@pytest.mark.parametrize(
    ("metric", "made"),
    [(ACCURACY, lambda change: 0.9 + change / 100), (LOSS, lambda change: 2.0 * (1 + change / 100))],
    ids=["accuracy", "loss"],
)
def test_seeds_that_agree_exactly_decide_nothing_by_themselves(
    metric: MetricInfo, made: Callable[[float], float]
) -> None:
    """Seeds agree by chance on a small test set; the interval is then that of the spread of the study's other rows."""
    base = Measured(value=made(0.0), spread=0.0, num_seeds=3)
    worse = -1.0 if metric.higher_is_better else 1.0
    shared = abs(made(0.2) - made(0.0)), 6
    for change, verdict in ((0.5, "kept"), (1.5, "lost")):
        row = Measured(value=made(worse * change), spread=0.0, num_seeds=3)
        alone, found = compare(row, base, metric, 0.01), compare(row, base, metric, 0.01, shared)
        assert (alone.verdict, alone.interval) == ("undecided", None)
        assert found.verdict == verdict and found.interval is not None and found.is_pooled
        low, high = found.interval
        # Student's 95 % quantile with 6 degrees of freedom is 1.943; the mean of 3 seeds against that of 3.
        assert high - low == pytest.approx(2 * 1.943 * 0.2 * math.sqrt(2 / 3), rel=0.02)


def test_seeds_of_one_row_that_agree_leave_the_spread_of_the_other() -> None:
    found = compare(
        Measured(value=0.1, spread=0.0, num_seeds=3), Measured(value=0.9, spread=0.003, num_seeds=3), ACCURACY, 0.01
    )
    assert found.verdict == "lost" and found.interval is not None and found.interval[1] > found.interval[0]


def test_a_positive_value_falls_by_at_most_a_hundred_percent() -> None:
    found = compare(
        Measured(value=1.0, spread=3.0, num_seeds=2), Measured(value=1.0, spread=3.0, num_seeds=2), LOSS, 0.01
    )
    assert found.interval is not None and found.interval[0] == -100 and found.interval[1] > 100


def test_values_that_are_not_numbers_decide_nothing() -> None:
    base = Measured(value=0.9, spread=0.01, num_seeds=3)
    for value, verdict in ((None, None), (math.nan, "undecided")):
        found = compare(Measured(value=value, spread=math.nan, num_seeds=3), base, ACCURACY, 0.01)
        assert (found.verdict, found.interval) == (verdict, None)
