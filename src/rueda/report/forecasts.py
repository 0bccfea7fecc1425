"""The reader of ``forecast.json``: test error against training examples, the fitted law and the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rueda.records.forecast import CurvePoint, Estimate, Forecast
from rueda.report.escape import lines
from rueda.report.figures.parts import area, curve, error_bars, log_axis, one_two_five, regimes, shade, upright
from rueda.report.model import Cell, Section, Table, field_as, short
from rueda.report.plot import Plot
from rueda.terminal.numbers import NONE, count, fixed, money, predicted_time, things


def to_section(found: Forecast) -> Section:
    """Return the section about a forecast."""
    return Section(
        title=f"{found.task}: error against data", task=found.task, told=answer(found), tables=[to_table(found)],
        plots=[_plot(found)] if any(point.errors for point in found.points) else [], notes=list(found.notes),
    )  # fmt: skip


def answer(forecast: Forecast) -> list[str]:
    """Return the answer in sentences: what the target needs, the fitted law, the check, and what could not be answered.

    >>> empty = Forecast(task="glyphs-cnn", examples=12_000, test_examples=2_000, chance=0.9, batch=64, epochs=4,
    ...     growth=0.5, recipe="", target_error=0.05, refusals=("too few sizes for a law: 2, 4 are needed",))
    >>> answer(empty)
    ['No forecast: too few sizes for a law: 2, 4 are needed.']
    """
    told, law, need, target = [], forecast.law, forecast.need, forecast.target_error
    if need is not None and target is not None:
        times = need.examples.value / forecast.examples
        told.append(
            f"A {forecast.error_name} of {target:g} needs about {interval(need.examples, _rounded)} training examples, "
            f"{times:.2g} times the {forecast.examples:,} there are."
        )
        here = (
            "" if need.seconds is None else f", {predicted_time(need.seconds)} at this machine's speed with one worker"
        )
        told.append(
            f"Trained like the subsets, {need.passes:.1f} passes over them are {count(round(need.processed))} examples "
            f"in {count(round(need.updates))} updates of batch {forecast.batch}{here}."
        )
    if forecast.cluster is not None:
        on = forecast.cluster
        cost = "" if on.cost is None else f", about {money(on.cost)} {on.currency}"
        told.append(
            f"On {things(on.workers, 'worker')} of {on.cluster}, batch {on.local_batch} each "
            f"({count(round(on.images_per_second))} {forecast.unit}/s): {interval(on.hours, _hours)}{cost}."
        )
    told += [f"No forecast: {line}." for line in forecast.refusals]
    symbol = "error" if forecast.error_name == "test error" else forecast.error_name
    if law is not None:
        told.append(
            f"{symbol} = {law.alpha.value:.3g} m^{law.beta.value:.3f} + {law.gamma.value:.4f}; {law.confidence:.0%} "
            f"intervals: beta {_between(law.beta, 3)}, gamma {_between(law.gamma, 4)}."
        )
    for check in forecast.checks:
        told.append(
            f"Check: at {check.point.examples:,} examples {check.predicted.value:.4f} was predicted "
            f"({_between(check.predicted, 4)}), {check.point.error or 0:.4f} measured: "
            f"{'inside' if check.inside else 'outside'} the interval."
        )
    return told or ["Nothing was fitted yet."]


def interval(estimate: Estimate, write: Callable[[float], str]) -> str:
    """Format a number with its interval.

    >>> interval(Estimate(value=48_212.0, low=31_044.0, high=None), "{:.0f}".format)
    '48212 (31044 or more)'
    """
    end = "or more" if estimate.high is None else f"to {write(estimate.high)}"
    return f"{write(estimate.value)} ({write(estimate.low)} {end})"


def to_table(forecast: Forecast) -> Table:
    """Return the table of the measured points, with the law's error and the zone of each."""
    law = forecast.law

    def predicted(point: CurvePoint) -> Cell:
        found = None if law is None or point.examples < law.fitted[0] else law.error(point.examples)
        return found, fixed(found, 4)

    def zone(point: CurvePoint) -> str:
        if law is None:
            return NONE
        irreducible = law.irreducible_from is not None and point.examples >= law.irreducible_from
        where = "small data" if point.examples < law.fitted[0] else "irreducible" if irreducible else "power law"
        return where + ", check" * (point is forecast.whole)

    columns: dict[str, Callable[[CurvePoint], Cell]] = {
        "examples": field_as("examples", count),
        "passes": field_as("passes", "{:.1f}".format),
        "updates": field_as("updates", count),
        forecast.error_name: lambda one: (one.error, fixed(one.error, 4, one.spread) if one.errors else "diverged"),
        "law": predicted,
        "zone": zone,
    }
    points = [*forecast.points, *filter(None, [forecast.whole])]
    seeds = {len(point.errors) for point in forecast.points} or {0}
    most = f"{'up to ' * (len(seeds) > 1)}{things(max(seeds), 'seed')}"
    name = forecast.error_name.capitalize()
    note = f"{name} after the last epoch, mean ± standard deviation over {most}, each with its own subset."
    return Table.of("Trainings on growing subsets", points, columns, note)


def _plot(forecast: Forecast) -> Plot:
    law, points = forecast.law, [point for point in forecast.points if point.error is not None]
    whole = [point for point in [forecast.whole] if point and point.errors]
    fitted = () if law is None else law.fitted
    used = [point for point in points if point.examples in fitted]
    left = [point for point in points if point.examples not in fitted]
    groups = (
        ("measured", "@blue", "circle", used),
        ("left out of the fit" if law else "measured", "@muted", "circle-open", left),
        ("the whole set, not fitted", "@red", "diamond", whole),
    )
    traces = _band(forecast) + [_measured(*group) for group in groups if group[-1]]
    sizes = [point.examples for point in (*points, *whole)] + [point.examples for point in forecast.band]
    errors = [point.error or 0.0 for point in (*points, *whole)] + [point.low for point in forecast.band]
    low, high = min(sizes) / 1.3, max(sizes) * 1.3
    zones: dict[str, list[dict[str, Any]]] = {"shapes": [], "annotations": []}
    if law is not None:
        ends = (min(max(x, low), high) for x in (law.fitted[0] / 1.15, law.irreducible_from or math.inf))
        zones = regimes(("small data", "power law", "irreducible"), (low, *ends, high), (0.1, 0.0, 0.07))
    target, need = forecast.target_error, forecast.need
    if target is not None:
        errors.append(target)
        dashed = {"color": "@orange", "width": 1.4, "dash": "dash"}
        zones["shapes"].append({"type": "line", "x0": low, "x1": high, "y0": target, "y1": target, "line": dashed})
        zones["annotations"].append(
            {"x": math.log10(low), "y": math.log10(target), "text": f"target {target:g}", "showarrow": False,
             "xanchor": "left", "yanchor": "bottom"}
        )  # fmt: skip
    if need is not None:
        at = need.examples
        zones["shapes"].append(upright(at.value, "@orange"))
        if at.low < high:
            zones["shapes"].append(shade(at.low, min(high, at.high or high), "@orange", 0.1))
    bottom = max(min(errors), 1e-5) / 1.3
    highest = 1.0 if forecast.is_fraction else math.inf
    top = max(min(highest, max(errors) * 1.2), 2 * bottom)  # also if all errors are zero
    return Plot(
        name="forecast", title=f"{forecast.error_name.capitalize()} against training examples", height=460,
        traces=traces,
        layout={
            "xaxis": _between_ends("training examples", low, high),
            "yaxis": _between_ends(forecast.error_name, bottom, top),
            **zones, "showlegend": True, "margin": {"l": 56, "r": 16, "t": 40, "b": 48},
        },
        note="Both axes are logarithmic: a power law is a straight line, and bends where the irreducible error begins. "
        "The band is the interval of the law; orange marks the target and the data that it needs.",
    )  # fmt: skip


def _between_ends(title: str, low: float, high: float) -> dict[str, Any]:
    return log_axis(title, one_two_five(low, high), range=[math.log10(low), math.log10(high)])


def _band(forecast: Forecast) -> list[dict[str, Any]]:
    band, law = forecast.band, forecast.law
    if not band or law is None:
        return []
    x, low = [short(point.examples) for point in band], [short(max(point.low, 1e-6)) for point in band]
    high, errors = [short(point.high) for point in band], [short(point.error) for point in band]
    return [
        area(x, low, high, "@blue", 0.2, name=f"{law.confidence:.0%} interval"),
        curve(x, errors, "@blue", name="law", hovertemplate="%{x:,.0f} examples: error %{y:.4f}"),
    ]


def _measured(name: str, colour: str, symbol: str, points: list[CurvePoint]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": [point.examples for point in points],
        "y": [short(point.error) for point in points],
        "error_y": error_bars([short(point.spread or 0.0) for point in points], colour),
        "marker": {"size": 9, "color": colour, "symbol": symbol},
        "customdata": [f"{point.passes:.1f} passes, {point.updates:,} updates" for point in points],
        "hovertemplate": lines("%{x:,} examples: error %{y:.4f}", "%{customdata}"),
    }  # fmt: skip


def _between(estimate: Estimate, digits: int) -> str:
    high = "∞" if estimate.high is None else f"{estimate.high:.{digits}f}"
    return f"{estimate.low:.{digits}f} to {high}"


def _rounded(examples: float) -> str:
    return count(float(f"{examples:.3g}"))


def _hours(hours: float) -> str:
    return predicted_time(3600 * hours)
