"""Extrapolate a learning curve by a power law to the data that a target error needs, or say why that is not possible.

A learning curve has three zones (Hestness et al. 2017, 1712.00409): *small data* (hardly better than chance; its points
are left out), *power law*, and *irreducible* (gamma, with its interval, is more than half of the error). Phases of
:func:`extrapolate`:

**Choose** the points: those near chance are left out, and so are the smallest sizes until the rest fits a power law.
**Fit** the law (:mod:`rueda.plan.power_law`).
**Doubt**: nothing is extrapolated if there are too few points, the error does not fall, the points do not fit the law
(chi-squared test), or beta may be 0; nor beyond :data:`FARTHEST` times the largest measured size, nor where the
interval of the error extends more than :data:`WIDEST` of the error to either side.
**Answer**: the examples with their interval, the passes over them, the updates, the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rueda.errors import RunError
from rueda.plan.curve_noise import CurveNoise, noise_of
from rueda.plan.power_law import PowerLaw, fit_power_law
from rueda.records.forecast import FEWEST_SIZES, BandPoint, Check, CurvePoint, Estimate, Forecast, Law, Need

NEAR_CHANCE = 0.75
"""an error above this fraction of chance belongs to the small-data zone"""
WIDEST = 0.25
"""largest half-width of the interval of a predicted error, as a fraction of the error"""
FARTHEST = 100.0
"""how many times the largest measured size the law may be extrapolated to"""
CLEAR = 3.0
"""how many standard errors the error must fall by with twice the data"""
_MISFIT = 0.01
_FLATTEST = 0.02


def extrapolate(forecast: Forecast, target_error: float) -> Forecast:
    """Fit a power law to a learning curve; return the forecast with what the target error needs, or with refusals.

    Args:
        forecast: holds the points that :func:`rueda.study.learning_curve.measure_learning_curve` measured.
        target_error: fraction of wrong answers on the test data, between 0 and 1; or a value of the forecast's metric,
            of which lower is better.
    """
    if not forecast.is_fraction:
        if not 0 < target_error < np.inf:
            raise RunError(
                "--target", expected="a number above 0", got=target_error, do=f"give a {forecast.error_name}"
            )
    elif not 0 < target_error < 1:
        raise RunError("--target-error", expected="a fraction between 0 and 1", got=target_error, do="give e.g. 0.05")
    plain = replace(
        forecast, target_error=target_error, law=None, band=(), need=None, cluster=None, checks=(), refusals=()
    )
    # Choose.
    points, notes = _chosen(plain)
    if len(points) < FEWEST_SIZES:
        better = "" if forecast.chance is None else " better than chance"
        line = f"too few sizes for a law: {len(points)}{better}, {FEWEST_SIZES} are needed; add larger ones"
        return replace(plain, notes=tuple(notes), refusals=(line,))
    # Fit.
    noise = partial(noise_of, test_examples=forecast.test_examples, is_fraction=forecast.is_fraction)
    rising = _does_not_fall(points, noise)
    if rising is not None:
        return replace(plain, notes=tuple(notes), refusals=(rising,))
    fitted, dropped = _fit_largest_sizes(points, noise)
    law = _law(fitted)
    found = replace(plain, law=law, notes=(*notes, *dropped))
    # Doubt.
    doubts = _doubts(law)
    if doubts:
        return replace(found, band=_band(fitted, fitted.sizes.max()), refusals=tuple(doubts))
    # Answer.
    farthest = max(forecast.examples, min(law.reach, 4 * fitted.examples(target_error).value))
    return _answered(replace(found, band=_band(fitted, farthest)), fitted, law)


def _chosen(forecast: Forecast) -> tuple[list[CurvePoint], list[str]]:
    points, notes = [], []
    for point in sorted(forecast.points, key=lambda point: point.examples):
        if point.diverged:
            notes.append(f"{point.examples:,} examples: {point.diverged} trainings diverged and are left out")
        if point.error is None:
            continue
        if forecast.chance is not None and point.error > NEAR_CHANCE * forecast.chance:
            notes.append(
                f"{point.examples:,} examples are left out: error {point.error:.3f} is near chance "
                f"({forecast.chance:.3f}), the small-data zone"
            )
            continue
        points.append(point)
    return points, notes


def _does_not_fall(points: Sequence[CurvePoint], noise: Callable[[Sequence[CurvePoint]], CurveNoise]) -> str | None:
    """Return a refusal unless the slope of the error against log2(size) is negative by :data:`CLEAR` deviations."""
    x, y = np.log2([point.examples for point in points]), np.array([point.error or 0.0 for point in points])
    weights = np.linalg.inv(noise(points).covariance)
    design = np.stack([np.ones_like(x), x], 1)
    information = design.T @ weights @ design
    slope, deviation = np.linalg.solve(information, design.T @ weights @ y)[1], np.linalg.inv(information)[1, 1] ** 0.5
    if slope < -CLEAR * deviation:
        return None
    found = "does not fall" if slope >= 0 else "falls, but not clearly enough"
    clear = f" ({-slope / deviation:.1f} standard errors; at least {CLEAR:g} are needed)" if slope < 0 else ""
    return (
        f"the error {found} with the data{clear}: {slope:+.4f} ± {deviation:.4f} for twice as much; train longer, or "
        "use larger sizes or more seeds"
    )


def _fit_largest_sizes(
    points: Sequence[CurvePoint], noise: Callable[[Sequence[CurvePoint]], CurveNoise]
) -> tuple[PowerLaw, list[str]]:
    """Fit a law, leaving out the smallest sizes one by one until the rest fits or too few remain."""
    points, notes = list(points), list[str]()
    while True:
        of_points = noise(points)
        fitted = fit_power_law(
            [point.examples for point in points], [point.error or 0.0 for point in points], of_points.covariance,
            freedom=of_points.freedom,
        )  # fmt: skip
        if fitted.misfit >= _MISFIT or len(points) == FEWEST_SIZES:
            return fitted, notes
        notes.append(
            f"{points[0].examples:,} examples are left out: with them the points do not lie on a power law "
            f"(p = {fitted.misfit:.2g}), the small-data zone"
        )
        points = points[1:]


def _law(fitted: PowerLaw) -> Law:
    alpha, beta, gamma = fitted.constants()
    return Law(
        alpha=alpha, beta=beta, gamma=gamma, confidence=fitted.confidence,
        fitted=tuple(int(size) for size in fitted.sizes), misfit=fitted.misfit, reach=_reach(fitted),
        irreducible_from=fitted.irreducible_from().high,
    )  # fmt: skip


def _reach(fitted: PowerLaw) -> float:
    """Return the largest size at which the interval of the error is still narrow enough."""
    reach = largest = float(fitted.sizes.max())
    for size in np.geomspace(largest, FARTHEST * largest, 101):
        error = fitted.error(float(size))
        if (error.high or np.inf) - error.low > 2 * WIDEST * error.value:
            break
        reach = float(size)
    return reach


def _doubts(law: Law) -> list[str]:
    doubts = []
    if law.misfit < _MISFIT:
        doubts.append(
            f"the points do not lie on a power law (p = {law.misfit:.2g}); use larger sizes or train longer (--epochs)"
        )
    if law.beta.high is None or law.beta.high > -_FLATTEST:
        doubts.append(
            f"beta may be 0 ({law.beta.low:.2f} to {law.beta.high:.2f}): more data may not help; add sizes or seeds"
        )
    return doubts


def _band(fitted: PowerLaw, farthest: float) -> tuple[BandPoint, ...]:
    found = []
    for size in np.geomspace(fitted.sizes.min(), farthest, 61):
        error = fitted.error(float(size))
        found.append(BandPoint(examples=float(size), error=error.value, low=error.low, high=error.high or error.value))
    return tuple(found)


def _answered(forecast: Forecast, fitted: PowerLaw, law: Law) -> Forecast:
    target, refusals, notes = forecast.target_error or 0.0, [], list(forecast.notes)
    need, examples = None, fitted.examples(target)
    smallest, largest, reach = fitted.sizes.min(), fitted.sizes.max(), law.reach
    floor = f"{law.gamma.value:.4f} ({law.gamma.low:.4f} to {law.gamma.high:.4f})"
    if target <= law.gamma.low or not np.isfinite(examples.low):
        refusals.append(f"target {target:g} is below the irreducible error {floor}: no amount of data reaches it")
    elif not np.isfinite(examples.value):
        refusals.append(
            f"target {target:g} is near the irreducible error {floor}: it needs {examples.low:,.0f} examples or more, "
            "and may be out of reach; measure larger sizes or more seeds"
        )
    elif examples.value > reach:
        refusals.append(
            f"target {target:g} needs about {examples.value:,.0f} examples (at least {examples.low:,.0f}), but the "
            f"intervals allow only {reach:,.0f}, {reach / largest:.1f} times the largest measured; measure larger "
            "sizes or more seeds"
        )
    elif examples.value < smallest:
        refusals.append(
            f"target {target:g} is reached below the smallest size of the law, {smallest:,.0f} examples (error "
            f"{law.error(smallest):.3f}); there is nothing to forecast"
        )
    else:
        need = _need(forecast, examples)
        if examples.high is None:
            notes.append(f"target {target:g} may be out of reach: the irreducible error is {floor}")
    checks = []
    whole = forecast.whole
    if whole is not None and whole.error is not None:
        predicted = fitted.error(whole.examples)
        inside = predicted.low <= whole.error <= (predicted.high or np.inf)
        checks.append(Check(point=whole, predicted=predicted, inside=bool(inside)))
    return replace(forecast, need=need, checks=tuple(checks), notes=tuple(notes), refusals=tuple(refusals))


def _need(forecast: Forecast, examples: Estimate) -> Need:
    processed = forecast.epochs * forecast.epoch_examples(examples.value)
    speed = max(forecast.points, key=lambda point: point.examples).images_per_second
    return Need(
        examples=examples, passes=processed / examples.value, updates=processed / forecast.batch, processed=processed,
        seconds=processed / speed if speed > 0 else None,
    )  # fmt: skip
