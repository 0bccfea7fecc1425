"""The metric of each row of a study against one worker's, the best on top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rueda.records.metric import MetricInfo
from rueda.report.escape import Label, bold, lines
from rueda.report.figures.parts import LEGEND_ABOVE, SHARES, error_bars, upright
from rueda.report.figures.styles import tick_name
from rueda.report.model import Entry, Section
from rueda.report.plot import Plot
from rueda.terminal.metrics import write_change, write_interval, write_value

_KINDS = (
    ("one worker", "@ink", "square"),
    ("kept", "@blue", "circle"),
    ("lost", "@red", "diamond"),
    ("undecided", "@orange", "triangle-up"),
    ("not judged", "@muted", "circle-open"),
    ("diverged", "@red", "x"),
)


def techniques(section: Section) -> Plot:
    """Draw a dot for each row, with a line to one worker's accuracy and the value in a column on the right."""
    metric = section.metric
    shown = [entry for entry in section.entries if _value(entry) is not None or entry.verdict == "diverged"]
    rows = sorted(shown, key=lambda entry: -math.inf if _value(entry) is None else metric.score(_or(_value(entry), 0)))
    base = next((row for row in rows if row.role == "base"), None)
    known = [(value, row.test_spread or 0.0) for row in rows if (value := _value(row)) is not None]
    low = min((value - spread for value, spread in known), default=0.0)
    high = max((value + spread for value, spread in known), default=1.0)
    least = 0.01 if metric.percent else 0.0
    left = min(low, max(0.0, low - (high - low) * 0.12 - least))
    room = (high - left) * 0.05 or (0.02 if metric.percent else 0.02 * abs(high) or 0.02)
    annotations = [
        {
            "x": 1, "xref": "paper", "xanchor": "right", "xshift": 64, "y": index, "showarrow": False,
            "font": {"size": 13}, "text": "diverged" if _value(row) is None else write_value(metric, _value(row)),
        }
        for index, row in enumerate(rows)
    ]  # fmt: skip
    name = lines(f"test {metric.name}")
    title = Label(f"{name} (<i>r</i>: rehearsed)") if any(row.rehearsed for row in rows) else name
    layout = {
        "xaxis": {
            "title": title, "tickformat": SHARES if metric.percent else None, "range": [left - room, high + room],
            "tickangle": 0, "nticks": 12,
        },
        "yaxis": name_axis(rows),
        "shapes": [] if base is None else _bars(rows, base, metric),
        "annotations": annotations,
        "showlegend": True,
        "margin": {"l": 60, "r": 76, "t": 36, "b": 48},
        "legend": LEGEND_ABOVE,
    }  # fmt: skip
    narrow = {"xaxis.nticks": 4, "margin.r": 62, **narrow_names(rows)}
    return Plot(
        name="techniques", title="What each technique keeps", layout=layout,
        traces=_dots(rows, base, left if metric.higher_is_better else high, metric),
        height=100 + 30 * len(rows), narrow=narrow | {f"annotations.{index}.xshift": 56 for index in range(len(rows))},
    )  # fmt: skip


def name_axis(rows: Sequence[Entry]) -> dict[str, Any]:
    """Return the vertical axis with the names of the rows."""
    return {
        "title": "", "tickvals": list(range(len(rows))), "range": [-0.7, len(rows) - 0.3], "gridcolor": "rgba(0,0,0,0)",
        "ticktext": [tick_name(row, is_narrow=False) for row in rows], "tickfont": {"color": "@ink", "size": 13},
    }  # fmt: skip


def narrow_names(rows: Sequence[Entry]) -> dict[str, Any]:
    """Return the changes of :func:`name_axis` on a phone."""
    names = [tick_name(row, is_narrow=True) for row in rows]
    return {"yaxis.ticktext": names, "yaxis.tickfont.size": 11}


def _dots(rows: list[Entry], base: Entry | None, worst: float, metric: MetricInfo) -> list[dict[str, Any]]:
    traces = []
    for name, colour, symbol in _KINDS:
        kinds = ["one worker" if row is base else row.verdict or "not judged" for row in rows]
        chosen = [(at, row) for at, row in enumerate(rows) if kinds[at] == name]
        if chosen:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": name, "showlegend": True, "cliponaxis": False,
                    "x": [_or(_value(row), worst) for _, row in chosen], "y": [at for at, _ in chosen],
                    "marker": {"color": colour, "symbol": symbol, "size": 12},
                    "error_x": error_bars(
                        [row.test_spread or 0 for _, row in chosen], colour, thickness=1.5, width=4
                    ),
                    "customdata": [_about(row, metric) for _, row in chosen], "hovertemplate": "%{customdata}",
                }
            )  # fmt: skip
    return traces


def _bars(rows: list[Entry], base: Entry, metric: MetricInfo) -> list[dict[str, Any]]:
    """Return a dotted line at one worker's accuracy, and a line from it to each row's."""
    middle = _value(base)
    if middle is None:
        return []
    shapes = [{**upright(middle, "@ink", 1.2, "dot"), "layer": "between"}]
    for at, row in enumerate(rows):
        value = _value(row)
        if value is not None and row is not base:
            is_good = metric.score(value) >= metric.score(middle) or row.verdict == "kept"
            colour = "@orange" if row.verdict == "undecided" else "@blue" if is_good else "@red"
            shapes.append(
                {"type": "line", "x0": middle, "x1": value, "y0": at, "y1": at, "layer": "between",
                 "line": {"color": colour, "width": 2}}
            )  # fmt: skip
    return shapes


def _value(entry: Entry) -> float | None:
    return None if entry.diverged else entry.test


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _about(entry: Entry, metric: MetricInfo) -> Label:
    who = "1 worker" if entry.workers == 1 else f"{entry.workers} workers"
    told = [entry.summary, f"{who}{', rehearsed' * entry.rehearsed}" if entry.workers else ""]
    told.append(
        "diverged" if entry.diverged else f"test {metric.name} {write_value(metric, entry.test, entry.test_spread)}"
    )
    change = f"{write_change(metric, entry.against)}{' points' * metric.percent}"
    interval = "" if entry.interval is None else f" ({write_interval(metric, entry.interval)})"
    told.append("" if entry.against is None else f"{change}{interval} against one worker: {entry.verdict}")
    return lines(bold(entry.name), *(text for text in told if text))
