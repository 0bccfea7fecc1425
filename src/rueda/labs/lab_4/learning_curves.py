"""Error against data: a curve with known constants, two measured ones, and what a target needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from rueda.labs import stored
from rueda.labs.showing import Drawn, Text
from rueda.plan.data_needed import extrapolate
from rueda.records.forecast import CurvePoint, Estimate, Forecast, Law
from rueda.report.figures.parts import curve, log_axis, one_two_five
from rueda.report.forecasts import answer, to_section
from rueda.report.model import Cell, Table
from rueda.report.plot import Plot
from rueda.terminal.numbers import count, percent, predicted_time

MEASURED = {"glyphs": "forecast-glyphs", "Fashion-MNIST": "forecast-fashion-mnist"}
"""the stored forecasts by name"""
SIZES = tuple(250 * 2**power for power in range(8))
CHANCE = 0.9
"""the error of guessing among ten classes"""
PAPERS = {"language (word)": -0.066, "translation": -0.128, "speech": -0.299, "images": -0.309}
"""exponents that Hestness et al. 2017 report"""


def law(alpha: float, beta: float, gamma: float) -> Law:
    """Return a law with known constants."""
    exact = [Estimate(value=value, low=value, high=value) for value in (alpha, beta, gamma)]
    return Law(
        alpha=exact[0], beta=exact[1], gamma=exact[2], confidence=0.95, fitted=(1,), misfit=1.0, reach=1e12,
        irreducible_from=None,
    )  # fmt: skip


def law_figure(beta: float, gamma: float) -> list[Drawn]:
    """Draw error = 10 m^beta + gamma on logarithmic axes, with and without its floor.

    >>> law(10.0, -0.5, 0.02).error(10_000)
    0.12000000000000001
    """
    sizes = [float(size) for size in np.geomspace(1e3, 1e8, 61)]
    with_floor, without = law(3.0, beta, gamma), law(3.0, beta, 0.0)
    traces = [
        curve(sizes, [one.error(size) for size in sizes], hue, dash=dash, name=name,
              hovertemplate="%{x:,.3g} examples: error %{y:.3g}")
        for one, name, hue, dash in (
            (without, "the power law alone", "@muted", "dot"),
            (with_floor, "with what no data remove", "@blue", "solid"),
        )
    ]  # fmt: skip
    plot = Plot(
        name="law", title="Error against the number of training examples", traces=traces,
        layout={
            "xaxis": log_axis("training examples", one_two_five(1e3, 1e8), tickangle=0),
            "yaxis": log_axis("test error", one_two_five(0.003, 3), range=[np.log10(0.003), np.log10(3)]),
            "showlegend": True,
        },
        narrow={"xaxis": log_axis("training examples", [1e3, 1e5, 1e7], tickangle=0)},
    )  # fmt: skip
    ten = with_floor.error(1e6) / with_floor.error(1e5)
    return [plot, Text(f"From 100,000 to 1,000,000 examples the error falls to **{percent(ten)}** of what it was.")]


def known_law(beta: float, gamma: float) -> Law:
    """Return the law of the drawn curves: an error of 0.7 at 500 examples, little better than chance."""
    return law((0.7 - gamma) / law(1.0, beta, 0.0).error(500), beta, gamma)


@cache
def synthetic(beta: float, gamma: float, seeds: int) -> Forecast:
    """Return a learning curve drawn around a known law, with the noise of so many seeds and 2,000 test examples."""
    known, draws = known_law(beta, gamma), np.random.default_rng(7)
    points = []
    for size in SIZES:
        error = min(known.error(size), CHANCE)
        drawn = draws.normal(error, np.sqrt(error * (1 - error) / 2_000), seeds)
        points.append(
            CurvePoint(
                examples=size, passes=1.0, updates=1, errors=tuple(float(value) for value in drawn.clip(1e-4, 0.95)),
                seeds=tuple(range(seeds)), images_per_second=1_000.0,
            )
        )  # fmt: skip
    return Forecast(
        task="a curve with known constants", examples=SIZES[-1], test_examples=2_000, chance=CHANCE, batch=64,
        epochs=4, growth=0.5, recipe="", points=tuple(points),
    )  # fmt: skip


def synthetic_figure(beta: float, gamma: float, seeds: int) -> list[Drawn]:
    """Fit the drawn curve, and say which constants were found."""
    found = extrapolate(synthetic(beta, gamma, seeds), target_error=0.1)
    told = f"Truth: β = **{beta:g}**, γ = **{gamma:g}**."
    if found.law is not None:
        told += f" Found: β = {_interval(found.law.beta, '.3f')}, γ = {_interval(found.law.gamma, '.4f')}."
    answers = [line for line in answer(found) if "No forecast" in line or "needs" in line]
    return [to_section(found).plots[0], Text(told), *map(Text, answers)]


def _interval(estimate: Estimate, form: str) -> str:
    high = "…" if estimate.high is None else format(estimate.high, form)
    return f"**{estimate.value:{form}}** ({estimate.low:{form}} to {high})"


def measured(name: str) -> Forecast:
    """Return a stored learning curve."""
    return stored.load(Forecast, MEASURED[name])


@cache
def forecast(name: str, target_error: float, sizes: int = 6) -> Forecast:
    """Extrapolate a stored learning curve, from its smallest sizes only, to a target error."""
    found = measured(name)
    points = tuple(sorted(found.points, key=lambda point: point.examples)[:sizes])
    return extrapolate(replace(found, points=points), target_error)


def forecast_figure(name: str, target_error: float) -> list[Drawn]:
    """Draw a stored learning curve with its law and the target, and say what the target needs."""
    found = forecast(name, target_error)
    return [Text(stored.line(MEASURED[name])), to_section(found).plots[0], *map(Text, answer(found))]


def check_figure(name: str, sizes: int) -> list[Drawn]:
    """Fit only the smallest sizes, and compare the prediction for the whole set with what was measured there."""
    found = forecast(name, 0.1, sizes)
    rows: list[list[Cell]] = [
        [
            (check.point.examples, count(check.point.examples)),
            (check.predicted.value, f"{check.predicted.value:.4f}"),
            f"{check.predicted.low:.4f} to {check.predicted.high or 0:.4f}",
            (check.point.error, f"{check.point.error or 0:.4f}"),
            "inside" if check.inside else "outside",
        ]
        for check in found.checks
    ]
    heads = ["examples", "predicted error", "95 % interval", "measured error", "verdict"]
    refused = [Text(f"No forecast: {line}.") for line in found.refusals if not found.checks]
    table = [Table(title="", heads=heads, rows=rows)] if rows else []
    return [Text(stored.line(MEASURED[name])), to_section(found).plots[0], *table, *refused]


def needs(name: str) -> list[Drawn]:
    """Return the table of :func:`needs_table`, and where its learning curve is from."""
    return [Text(stored.line(MEASURED[name])), needs_table(name)]


def needs_table(name: str) -> Table:
    """Return what several targets need: examples, updates, examples processed, and time on one worker."""

    def column(read: Callable[[Forecast], Cell]) -> Callable[[float], Cell]:
        return lambda target: read(forecast(name, target))

    def need(what: str, write: Callable[[float], str]) -> Callable[[float], Cell]:
        def read(found: Forecast) -> Cell:
            if found.need is None:
                return None, "no forecast"
            value = getattr(found.need, what)
            value = value.value if isinstance(value, Estimate) else value
            return value, "–" if value is None else write(value)

        return column(read)

    return Table.of(
        f"What a target error needs: {name}",
        TARGETS[name],
        {
            "target error": lambda target: (target, f"{target:.3g}"),
            "training examples": need("examples", _round),
            "passes": need("passes", "{:.1f}".format),
            "updates": need("updates", _round),
            "examples processed": need("processed", _round),
            "time on one worker": need("seconds", predicted_time),
        },
        note="Time at the speed at which the subsets were trained: one worker, on a machine with other work beside it.",
    )


TARGETS = {"glyphs": (0.14, 0.12, 0.1, 0.08, 0.06, 0.04), "Fashion-MNIST": (0.13, 0.12, 0.11, 0.1, 0.09, 0.08)}
"""target errors of the table"""


def _round(value: float) -> str:
    return count(float(f"{value:.3g}"))
