"""Updates to a target against batch size: measured points, the fitted curve, the regimes and the critical batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rueda.records.batch_curve import BOUNDARY, REGIMES, BatchCurve
from rueda.records.steps_to_target import BatchPoint, StepsToTarget
from rueda.report.escape import Label, lines
from rueda.report.figures.parts import LEGEND_ABOVE, curve, log_axis, regimes, shade, thinned, upright
from rueda.report.model import short
from rueda.report.plot import Plot
from rueda.terminal.metrics import write_target
from rueda.terminal.numbers import count

_SHADES = (0.0, 0.06, 0.13)
_NOTE = (
    "The curve is updates = S + E / batch, with S the fewest updates and E the fewest examples. "
    f"Perfect scaling: twice the batch halves the updates (slope {BOUNDARY / (BOUNDARY + 1):.2g} or more); maximal "
    f"parallelism: twice the batch saves almost none ({1 / (BOUNDARY + 1):.2g} or less). "
    "Shaded red: the interval of the critical batch."
)


def steps(found: StepsToTarget) -> Plot:
    """Draw updates against batch, both on logarithmic axes; a batch size that never reached the target is left out."""
    points = sorted(found.points, key=lambda point: point.batch)
    reached = [(point, point.updates) for point in points if point.updates is not None]
    batches, updates = [point.batch for point, _ in reached], [value for _, value in reached]
    low, high = min(batches) / 1.5, max(batches) * 1.5
    measured = {
        "type": "scatter", "mode": "markers", "x": batches, "y": updates, "name": "measured",
        "marker": {"size": 9, "color": "@blue"}, "customdata": [_about(point) for point, _ in reached],
        "hovertemplate": lines("batch %{x:,}: %{y:,.0f} updates", "%{customdata}"),
    }  # fmt: skip
    ends = [math.log10(low), math.log10(high)]
    layout = {
        "xaxis": log_axis("batch", thinned(batches, 10), tickangle=0, range=ends),
        "yaxis": {"title": f"updates to {target_words(found)}", "type": "log", "dtick": 1,
                  "range": [math.log10(min(updates) / 1.8), math.log10(max(updates) * 1.8)]},
        "showlegend": True, "margin": {"l": 56, "r": 16, "t": 44, "b": 48},
        "legend": {**LEGEND_ABOVE, "y": -0.2, "yanchor": "top"},
    }  # fmt: skip
    curves = []
    if found.fit is not None:
        curves = _curves(found.fit, [low * (high / low) ** (index / 80) for index in range(81)])
        layout |= _regimes(found.fit, low, high)
    return Plot(
        name="steps", title="Updates to the target, against batch size", traces=[*curves, measured], layout=layout,
        note=_NOTE, half=True, narrow={"xaxis": log_axis("batch", thinned(batches, 5), tickangle=0, range=ends)},
    )  # fmt: skip


def target_words(found: StepsToTarget) -> str:
    """Write the target of a record."""
    return write_target(found.metric, found.value, found.data)


def _about(point: BatchPoint) -> Label:
    told = [] if point.examples is None else [f"{count(point.examples)} examples"]
    return lines(*told, *([] if point.rate is None else [f"rate {count(point.rate)}"]))


def _curves(fit: BatchCurve, batches: Sequence[float]) -> list[dict[str, Any]]:
    drawn = (
        ("fit", [fit.updates(batch) for batch in batches], "solid", "@blue", 2),
        ("perfect scaling", [fit.smallest_examples / batch for batch in batches], "dot", "@muted", 1.2),
        ("fewest updates", [fit.smallest_updates for _ in batches], "dash", "@muted", 1.2),
    )
    x = [short(batch) for batch in batches]
    return [
        curve(x, [short(value) for value in values], colour, width=width, dash=dash, name=name, hoverinfo="skip")
        for name, values, dash, colour, width in drawn
    ]


def _regimes(fit: BatchCurve, low: float, high: float) -> dict[str, Any]:
    """Shade the regimes and name them above; mark the critical batch and its interval."""
    ends = [low, *(min(max(end, low), high) for end in fit.boundaries), high]
    found = regimes([lines(*name.split()) for name in REGIMES], ends, _SHADES)
    first, last = fit.interval
    interval = (low if first is None else first, high if last is None else last)  # to the edge where it has no end
    found["shapes"] += [shade(*interval, "@red", 0.14), upright(fit.critical_batch)]
    found["annotations"].append(
        {"x": math.log10(fit.critical_batch), "y": 0.97, "yref": "paper", "yanchor": "top", "xanchor": "left",
         "xshift": 6, "showarrow": False, "align": "left", "text": f"critical batch {count(fit.critical_batch)}",
         "font": {"color": "@red-text"}}
    )  # fmt: skip
    return found
