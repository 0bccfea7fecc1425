"""What each technique keeps: the test accuracy of every row of a study, the best on top, against one worker's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.report.escape import Label, bold, lines
from rueda.report.figures.parts import LEGEND_ABOVE, SHARES, spread, upright
from rueda.report.figures.styles import tick_name
from rueda.report.model import Entry, Section
from rueda.report.plot import Plot
from rueda.terminal.numbers import percent, points

_KINDS = (
    ("one worker", "@ink", "square"),
    ("kept", "@blue", "circle"),
    ("lost", "@red", "diamond"),
    ("not judged", "@muted", "circle-open"),
    ("diverged", "@red", "x"),
)


def techniques(section: Section) -> Plot:
    """Draw a dot a row, with a bar to one worker's accuracy and the number in a column beside the plot."""
    shown = [entry for entry in section.entries if _accuracy(entry) is not None or entry.verdict == "diverged"]
    rows = sorted(shown, key=lambda entry: _or(_accuracy(entry), -1.0))
    base = next((row for row in rows if row.role == "base"), None)
    known = [value for row in rows if (value := _accuracy(row)) is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    left = max(0.0, low - (high - low) * 0.12 - 0.01)
    room = (high - left) * 0.05 or 0.02
    annotations = [
        {
            "x": 1, "xref": "paper", "xanchor": "right", "xshift": 64, "y": index, "showarrow": False,
            "font": {"size": 13}, "text": "diverged" if _accuracy(row) is None else percent(_accuracy(row)),
        }
        for index, row in enumerate(rows)
    ]  # fmt: skip
    rehearsed = Label("test accuracy (<i>r</i>: rehearsed)") if any(row.rehearsed for row in rows) else "test accuracy"
    layout = {
        "xaxis": {
            "title": rehearsed, "tickformat": SHARES, "range": [left - room, high + room], "tickangle": 0, "nticks": 12
        },
        "yaxis": name_axis(rows),
        "shapes": [] if base is None else _bars(rows, base),
        "annotations": annotations,
        "showlegend": True,
        "margin": {"l": 60, "r": 76, "t": 36, "b": 48},
        "legend": LEGEND_ABOVE,
    }  # fmt: skip
    narrow = {"xaxis.nticks": 4, "margin.r": 62, **narrow_names(rows)}
    return Plot(
        name="techniques", title="What each technique keeps", traces=_dots(rows, base, left), layout=layout,
        height=100 + 30 * len(rows), narrow=narrow | {f"annotations.{index}.xshift": 56 for index in range(len(rows))},
    )  # fmt: skip


def name_axis(rows: Sequence[Entry]) -> dict[str, Any]:
    """Give the axis along which rows stand one above the other, by their names."""
    return {
        "title": "", "tickvals": list(range(len(rows))), "range": [-0.7, len(rows) - 0.3], "gridcolor": "rgba(0,0,0,0)",
        "ticktext": [tick_name(row, is_narrow=False) for row in rows], "tickfont": {"color": "@ink", "size": 13},
    }  # fmt: skip


def narrow_names(rows: Sequence[Entry]) -> dict[str, Any]:
    """Give what changes of :func:`name_axis` on a phone."""
    names = [tick_name(row, is_narrow=True) for row in rows]
    return {"yaxis.ticktext": names, "yaxis.tickfont.size": 11}


def _dots(rows: list[Entry], base: Entry | None, left: float) -> list[dict[str, Any]]:
    traces = []
    for name, colour, symbol in _KINDS:
        chosen = [(at, row) for at, row in enumerate(rows) if _kind(row, base) == name]
        if chosen:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": name, "showlegend": True, "cliponaxis": False,
                    "x": [_or(_accuracy(row), left) for _, row in chosen], "y": [at for at, _ in chosen],
                    "marker": {"color": colour, "symbol": symbol, "size": 12},
                    "error_x": spread(
                        [row.test_accuracy_spread or 0 for _, row in chosen], colour, thickness=1.5, width=4
                    ),
                    "customdata": [_about(row) for _, row in chosen], "hovertemplate": "%{customdata}",
                }
            )  # fmt: skip
    return traces


def _bars(rows: list[Entry], base: Entry) -> list[dict[str, Any]]:
    """Draw one worker's accuracy as a dotted line, and a bar from it to each row's."""
    middle = _accuracy(base)
    if middle is None:
        return []
    shapes = [{**upright(middle, "@ink", 1.2, "dot"), "layer": "between"}]
    for at, row in enumerate(rows):
        value = _accuracy(row)
        if value is not None and row is not base:
            colour = "@blue" if value >= middle or row.verdict == "kept" else "@red"
            shapes.append(
                {"type": "line", "x0": middle, "x1": value, "y0": at, "y1": at, "layer": "between",
                 "line": {"color": colour, "width": 2}}
            )  # fmt: skip
    return shapes


def _kind(row: Entry, base: Entry | None) -> str:
    return "one worker" if row is base else row.verdict or "not judged"


def _accuracy(entry: Entry) -> float | None:
    return None if entry.diverged else entry.test_accuracy


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _about(entry: Entry) -> Label:
    who = "1 worker" if entry.workers == 1 else f"{entry.workers} workers"
    told = [entry.summary, f"{who}{', rehearsed' * entry.rehearsed}" if entry.workers else ""]
    told.append(
        "diverged" if entry.diverged else f"test accuracy {percent(entry.test_accuracy, entry.test_accuracy_spread)}"
    )
    told.append("" if entry.against is None else f"{points(entry.against)} points against one worker: {entry.verdict}")
    return lines(bold(entry.name), *(text for text in told if text))
