"""The intervals of Young and Daly: against Daly's own figures, and against the exact minimum of the expected time."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from rueda.plan.checkpoint_interval import best_interval, daly_interval, expected_seconds, young_interval

RATIOS = (1e-4, 0.01, 0.1, 0.5, 1.0, 1.9)


@pytest.mark.parametrize(("hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_dalys_own_examples(hours: float, minutes: float) -> None:
    """Figures 3 to 5 of the paper: dumps of 5 minutes."""
    assert float(f"{daly_interval(5, 60 * hours):.{2 if minutes < 10 else 3}g}") == pytest.approx(minutes, abs=0.5)


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_exact_minimum(ratio: float) -> None:
    """By Lambert's function, and by a search that knows nothing of it; recovery and detection do not move it."""
    found = best_interval(3600 * ratio, 3600)
    assert found == pytest.approx(3600 * (1 + lambertw(-math.exp(-ratio - 1)).real), rel=1e-6)
    for recover, detect in ((0.0, 0.0), (900.0, 60.0)):
        searched = minimize_scalar(
            lambda interval: math.log(
                expected_seconds(
                    1, interval, stall=3600 * ratio, mtbf=3600, recover=recover, detect=detect  # noqa: B023
                )
            ),
            bounds=(1, 2 * 3600), method="bounded", options={"xatol": 1e-6},
        ).x  # fmt: skip
        assert searched == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize(
    ("ratio", "young", "daly"), [(1e-4, 0.005, 1e-4), (0.01, 0.05, 1e-4), (0.1, 0.17, 1e-3), (0.5, 0.44, 0.006)]
)
def test_how_far_off_the_formulas_are(ratio: float, young: float, daly: float) -> None:
    """As the documentation says; Young's interval is always too long."""
    best = best_interval(ratio, 1)
    assert 0 < young_interval(ratio, 1) / best - 1 < young
    assert abs(daly_interval(ratio, 1) / best - 1) < daly


def test_checkpoints_that_last_longer_than_the_time_between_failures() -> None:
    assert daly_interval(200, 100) == daly_interval(1000, 100) == 100
    assert 0.94 < daly_interval(190, 100) / best_interval(190, 100) < 1


def test_the_expected_time_of_a_short_segment_and_of_a_hopeless_one() -> None:
    assert expected_seconds(3600, 60, stall=1, mtbf=1e12) == pytest.approx(3660)
    assert expected_seconds(1, 1e6, stall=1, mtbf=1) == math.inf
