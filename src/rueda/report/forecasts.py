"""Reading ``forecast.json``: error against examples on logarithmic axes, the law, its interval, zones and target."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rueda.records.forecast import CurvePoint, Estimate, Forecast
from rueda.report.escape import lines
from rueda.report.figures.parts import area, curve, log_axis, one_two_five, regimes, shade, spread, upright
from rueda.report.model import Cell, Section, Table, short
from rueda.report.plot import Plot
from rueda.terminal.numbers import NONE, count, fixed, predicted_time, things


def read(place: Path) -> Section:
    """Read a forecast into a section of the page: the file, or ``forecast.json`` of a folder.

    Raises:
        RunError: the file is damaged.
    """
    found = Forecast.load(place)
    about = {**found.environment, "command": found.command or found.environment.get("command")}
    return Section(
        title=f"{found.task}: error against data", task=found.task, told=answer(found), tables=[_table(found)],
        plots=[_plot(found)] if any(point.errors for point in found.points) else [], environments=[about],
        notes=list(found.notes),
    )  # fmt: skip


def answer(forecast: Forecast) -> list[str]:
    """Tell what was found, in sentences: what the target needs, the law, the check, and what is not said.

    >>> empty = Forecast(task="glyphs-cnn", examples=12_000, test_examples=2_000, chance=0.9, batch=64, epochs=4,
    ...     growth=0.5, recipe="", target_error=0.05, refusals=("too few sizes for a law: 2, 4 are needed",))
    >>> answer(empty)
    ['Not told: too few sizes for a law: 2, 4 are needed.']
    """
    told, law, need, target = [], forecast.law, forecast.need, forecast.target_error
    if need is not None and target is not None:
        times = need.examples.value / forecast.examples
        told.append(
            f"A test error of {target:g} needs about {interval(need.examples, _rounded)} training examples, "
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
        cost = "" if on.cost is None else f", about {on.cost:,.2f} {on.currency}"
        told.append(
            f"On {things(on.workers, 'worker')} of {on.cluster}, batch {on.local_batch} each "
            f"({count(round(on.images_per_second))} images/s): {interval(on.hours, _hours)}{cost}."
        )
    told += [f"Not told: {line}." for line in forecast.refusals]
    if law is not None:
        told.append(
            f"error = {law.alpha.value:.3g} m^{law.beta.value:.3f} + {law.gamma.value:.4f}; {law.confidence:.0%} "
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
    """Write a number with its interval.

    >>> interval(Estimate(value=48_212.0, low=31_044.0, high=None), "{:.0f}".format)
    '48212 (31044 or more)'
    """
    end = "or more" if estimate.high is None else f"to {write(estimate.high)}"
    return f"{write(estimate.value)} ({write(estimate.low)} {end})"


def zone(forecast: Forecast, examples: float) -> str:
    """Name the zone of a size."""
    law = forecast.law
    if law is None:
        return NONE
    if examples < law.fitted[0]:
        return "small data"
    return "irreducible" if law.irreducible_from is not None and examples >= law.irreducible_from else "power law"


def rows(forecast: Forecast) -> list[tuple[CurvePoint, str, str]]:
    """List each measured size with its zone and what the law gives there."""
    points = [*forecast.points, *([] if forecast.whole is None else [forecast.whole])]
    law = forecast.law
    return [
        (
            point,
            zone(forecast, point.examples) + ", check" * (point is forecast.whole),
            NONE if law is None or point.examples < law.fitted[0] else f"{law.error(point.examples):.4f}",
        )
        for point in points
    ]


def error_text(point: CurvePoint) -> str:
    """Write a measured error with its spread."""
    return "diverged" if point.error is None else fixed(point.error, 4, point.spread)


def _table(forecast: Forecast) -> Table:
    columns: dict[str, Callable[[tuple[CurvePoint, str, str]], Cell]] = {
        "examples": lambda row: (row[0].examples, f"{row[0].examples:,}"),
        "passes": lambda row: (row[0].passes, f"{row[0].passes:.1f}"),
        "updates": lambda row: (row[0].updates, f"{row[0].updates:,}"),
        "test error": lambda row: (row[0].error, error_text(row[0])),
        "law": lambda row: (None if row[2] == NONE else float(row[2]), row[2]),
        "zone": lambda row: row[1],
    }
    seeds = max((len(point.errors) for point in forecast.points), default=0)
    means = f"mean ± standard deviation over up to {seeds} seeds, each with its own subset"
    note = f"Test error after the last epoch, {means}."
    return Table.of("Trainings on growing subsets", rows(forecast), columns, note)


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
    top = max(min(1.0, max(errors) * 1.2), 2 * bottom)  # of errors that are all zero, too
    return Plot(
        name="forecast", title="Test error against training examples", height=460, traces=traces,
        layout={
            "xaxis": _between_ends("training examples", low, high),
            "yaxis": _between_ends("test error", bottom, top),
            **zones, "showlegend": True, "margin": {"l": 56, "r": 16, "t": 40, "b": 48},
        },
        note="Both axes are logarithmic: a power law is a straight line, and bends where the irreducible error begins. "
        "The band is the interval of the law; orange is the target, and the data that it needs.",
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
        "error_y": spread([short(point.spread or 0.0) for point in points], colour),
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
