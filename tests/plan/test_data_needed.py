"""The answer to how much data a target needs, and the refusals where the law does not hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rueda.errors import RunError
from rueda.plan.data_needed import FARTHEST, extrapolate
from rueda.records.forecast import CurvePoint, Forecast

SIZES = (500, 1000, 2000, 4000, 8000, 16000)


def curve(errors: dict[int, float], *, whole: float | None = None, noise: float = 0.001) -> Forecast:
    """Give a learning curve with three seeds a size, of a known spread."""
    points = [
        CurvePoint(examples=size, passes=10.0, updates=99, errors=(error - noise, error, error + noise),
                   seeds=(0, 1, 2), images_per_second=1000.0)
        for size, error in errors.items()
    ]  # fmt: skip
    last = None if whole is None else CurvePoint(examples=64_000, passes=5.0, updates=9, errors=(whole,))
    return Forecast(
        task="t", examples=64_000, test_examples=50_000, chance=0.9, batch=50, epochs=5, growth=0.5, recipe="",
        points=tuple(points), whole=last,
    )  # fmt: skip


def law(alpha: float, beta: float, gamma: float) -> dict[int, float]:
    return {size: alpha * size**beta + gamma for size in SIZES}


def test_the_answer() -> None:
    found = extrapolate(curve(law(3.0, -0.35, 0.04), whole=3.0 * 64_000**-0.35 + 0.04), 0.1)
    assert found.refusals == () and found.notes == () and found.law is not None and found.need is not None
    needed = (0.06 / 3.0) ** (1 / -0.35)
    assert found.need.examples.value == pytest.approx(needed, rel=0.01)
    assert found.need.examples.low < needed < (found.need.examples.high or np.inf)
    # 5 epochs of sqrt(64,000 m) examples, in updates of 50, at 1,000 images/s.
    processed = 5 * np.sqrt(64_000 * needed)
    assert found.need.processed == pytest.approx(processed, rel=0.01)
    assert found.need.updates == pytest.approx(processed / 50, rel=0.01)
    assert found.need.passes == pytest.approx(processed / needed, rel=0.01)
    assert found.need.seconds == pytest.approx(processed / 1000, rel=0.01)
    assert found.law.fitted == SIZES
    half = (0.04 / 3.0) ** (1 / -0.35)
    assert found.law.irreducible_from is None or found.law.irreducible_from > half
    exact = extrapolate(curve(law(3.0, -0.5, 0.1), noise=1e-5), 0.15).law
    assert exact is not None and 900 < (exact.irreducible_from or 0) < 1800  # 3 / sqrt(900) = 0.1
    (check,) = found.checks
    assert check.inside and check.predicted.value == pytest.approx(check.point.error, rel=0.01)
    assert found.band[0].examples == 500 and all(one.low <= one.error <= one.high for one in found.band)


def test_a_check_outside_is_told() -> None:
    (check,) = extrapolate(curve(law(3.0, -0.35, 0.04), whole=0.2), 0.1).checks
    assert not check.inside


def kinked() -> dict[int, float]:
    return {500: 0.5, 1000: 0.2, 2000: 0.4, 4000: 0.15, 8000: 0.35, 16000: 0.1}


REFUSED = {
    "flat": (dict.fromkeys(SIZES, 0.3), 0.1, "the error does not fall with the data"),
    "rising": ({size: 0.2 + size / 1e5 for size in SIZES}, 0.1, "the error does not fall with the data"),
    "hardly falling": (
        {size: 0.3 - 0.001 * place for place, size in enumerate(SIZES)}, 0.1,
        "the error falls, but not clearly enough with the data (",
    ),
    "two points": ({500: 0.4, 1000: 0.3}, 0.1, "too few sizes for a law: 2 better than chance, 4 are needed"),
    "no better than chance": (dict.fromkeys(SIZES, 0.89), 0.1, "too few sizes for a law: 0 better than chance"),
    "below the floor": (law(3.0, -0.5, 0.1), 0.05, "below the irreducible error 0.1"),
    "too far": (law(2.0, -0.2, 0.0), 0.02, f"{FARTHEST:.1f} times the largest measured"),
    "reached already": (law(3.0, -0.35, 0.04), 0.5, "there is nothing to forecast"),
    "no law": (kinked(), 0.05, "the points do not lie on a power law"),
}  # fmt: skip


@pytest.mark.parametrize(("errors", "target", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_hold_is_refused(errors: dict[int, float], target: float, message: str) -> None:
    found = extrapolate(curve(errors), target)
    assert found.need is None and any(message in line for line in found.refusals), found.refusals
    assert all("\n" not in line for line in found.refusals)


def test_noise_shortens_the_reach() -> None:
    exact, noisy = (extrapolate(curve(law(3.0, -0.35, 0.04), noise=noise), 0.07) for noise in (0.0005, 0.02))
    assert exact.law is not None and noisy.law is not None
    assert exact.law.reach > 4 * noisy.law.reach >= 4 * SIZES[-1]
    assert exact.need is not None
    assert noisy.need is None and "the intervals allow only" in noisy.refusals[-1]


def test_a_target_near_the_floor_has_no_upper_end() -> None:
    """Above the best estimate of gamma it is told with a warning, below it refused."""
    steep = curve(law(3.0, -0.5, 0.05), noise=0.003)
    above, below = extrapolate(steep, 0.056), extrapolate(steep, 0.0498)
    assert above.need is not None and above.need.examples.high is None
    assert "may be out of reach" in above.notes[-1]
    assert below.need is None and "is near the irreducible error 0.05" in below.refusals[0]


def test_points_near_chance_are_left_out() -> None:
    """The small-data zone is flat at chance; a fit through it would promise too little."""
    errors = law(15.0, -0.5, 0.05)
    errors[500] = 0.9
    found = extrapolate(curve(errors), 0.15)
    assert found.law is not None and found.law.fitted == SIZES[1:]
    assert "500 examples are left out: error 0.900 is near chance (0.900)" in found.notes[0]
    assert found.law.beta.value == pytest.approx(-0.5, abs=0.01)


def test_a_slow_beginning_is_left_out() -> None:
    """Better than chance but not yet on the law: left out, since the others lie on one."""
    errors = law(3.0, -0.35, 0.04)
    errors[500] -= 0.08
    found = extrapolate(curve(errors), 0.1)
    assert found.law is not None and found.law.fitted == SIZES[1:] and found.refusals == ()
    assert "with them the points do not lie on a power law" in found.notes[0]


def test_diverged_trainings_are_told() -> None:
    whole = curve(law(3.0, -0.35, 0.04))
    points = [replace(whole.points[0], errors=(), diverged=3), *whole.points[1:]]
    found = extrapolate(replace(whole, points=tuple(points)), 0.1)
    assert "500 examples: 3 trainings diverged" in found.notes[0] and found.law is not None
    assert found.law.fitted == SIZES[1:]


@pytest.mark.parametrize("target", [0.0, 1.0, -0.1, 5.0, float("nan")])
def test_a_target_is_a_fraction(target: float) -> None:
    with pytest.raises(RunError, match="--target-error: expected a fraction between 0 and 1"):
        extrapolate(curve(law(3.0, -0.35, 0.04)), target)


def test_the_file_holds_all_of_it(tmp_path: Path) -> None:
    for target in (0.1, 0.041, 0.01):
        found = extrapolate(curve(law(3.0, -0.35, 0.04), whole=0.1), target)
        found.save(tmp_path / "forecast.json")
        assert Forecast.load(tmp_path) == found


BROKEN = {
    "no JSON": ("{", "expected JSON"),
    "another file": ('{"kind": "techniques"}', r"expected a forecast \(kind 'forecast'\), got 'techniques'"),
    "another format": ('{"kind": "forecast", "format": 9}', "expected format 1, got 9"),
    "missing fields": ('{"kind": "forecast", "format": 1}', "missing"),
    "a list": ("[]", "expected a forecast .*, got 'list'"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_gets_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "forecast.json").write_text(text)
    with pytest.raises(RunError, match=message):
        Forecast.load(tmp_path)
    with pytest.raises(RunError, match="make one with `rueda forecast`"):
        Forecast.load(tmp_path / "elsewhere.json")


def test_an_impossible_error_in_the_file(tmp_path: Path) -> None:
    found = curve(law(3.0, -0.35, 0.04))
    bad = replace(found, points=(replace(found.points[0], errors=(1.5,)),))
    bad.save(tmp_path / "forecast.json")
    with pytest.raises(RunError, match="expected a fraction, from 0 to 1"):
        Forecast.load(tmp_path)
