"""Predicted against measured: published tables, and the benchmark of this project's own plans."""

from __future__ import annotations

from typing import Any

from rueda.labs import stored
from rueda.labs.showing import Source
from rueda.plan.published import published_rows
from rueda.report.model import Table
from rueda.report.plot import Plot
from rueda.terminal.numbers import percent, things

STORED = "predictions"
COMPUTED = Source(
    live="Predicted here, now, by the library; the other column is as published.",
    static="Predicted by the library when this page was made; the other column is as published.",
)


def published_figure() -> list[Plot | Table]:
    """Draw the predicted scaling efficiency against the published one; on the line they agree."""
    rows = published_rows()
    dots = {
        "type": "scatter", "mode": "markers", "name": "a published row", "x": [row.published for row in rows],
        "y": [row.predicted for row in rows], "marker": {"size": 11, "color": "@blue"},
        "customdata": [row.name for row in rows],
        "hovertemplate": "%{customdata}: published %{x:.1%}, predicted %{y:.1%}",
    }  # fmt: skip
    table = Table.of(
        "",
        rows,
        {
            "row": lambda row: row.name,
            "published": lambda row: (row.published, percent(row.published)),
            "predicted": lambda row: (row.predicted, percent(row.predicted)),
            "off by, points": lambda row: (
                row.predicted - row.published,
                f"{100 * (row.predicted - row.published):+.1f}",
            ),
        },
        note="No constant of the model was fitted to a row.",
    )
    return [_against("published", "Scaling efficiency, predicted and published", dots, (0.72, 1.0), ".0%"), table]


def cases(clock: str) -> list[dict[str, Any]]:
    """Return the cases of the stored benchmark by one clock.

    >>> len(cases("wall"))
    8
    """
    return [case for case in stored.contents(STORED)["cases"] if case["clock"] == clock]


def benchmark_figure(clock: str) -> list[Plot | Table]:
    """Draw predicted against measured throughput of this project's benchmark, on one and two workers."""
    found = cases(clock)
    names = [f"{case['task']}, {things(case['workers'], 'worker')}, batch {case['batch']}" for case in found]
    dots = {
        "type": "scatter", "mode": "markers", "name": "a case", "x": [case["measured"] for case in found],
        "y": [case["predicted"] for case in found], "customdata": names,
        "marker": {"size": 11, "color": "@blue"},
        "hovertemplate": "%{customdata}: measured %{x:,.0f}, predicted %{y:,.0f} a second",
    }  # fmt: skip
    speeds = [case[which] for case in found for which in ("measured", "predicted")]
    ends = (0.9 * min(speeds), 1.05 * max(speeds))
    table = Table.of(
        "",
        list(zip(names, found, strict=True)),
        {
            "case": lambda one: one[0],
            "measured": lambda one: (one[1]["measured"], f"{one[1]['measured']:,.0f}"),
            "predicted": lambda one: (one[1]["predicted"], f"{one[1]['predicted']:,.0f}"),
            "ratio": lambda one: (one[1]["ratio"], f"{one[1]['ratio']:.2f}"),
        },
    )
    return [_against("benchmark", "Examples per second, predicted and measured", dots, ends, ",.0f"), table]


def largest_error(clock: str) -> float:
    """Return the largest relative error of the stored predictions."""
    return max(abs(float(case["ratio"]) - 1) for case in cases(clock))


def _against(name: str, title: str, dots: dict[str, Any], ends: tuple[float, float], form: str) -> Plot:
    line = {
        "type": "scatter", "mode": "lines", "x": list(ends), "y": list(ends), "name": "agreement", "hoverinfo": "skip",
        "line": {"color": "@muted", "dash": "dot", "width": 1.5},
    }  # fmt: skip
    axis = {"tickformat": form, "range": list(ends), "tickangle": 0, "nticks": 6}
    return Plot(
        name=name, title=title, traces=[line, dots],
        layout={"xaxis": {"title": "published" if name == "published" else "measured", **axis},
                "yaxis": {"title": "predicted", **axis}, "showlegend": True},
    )  # fmt: skip
