"""Gradient descent on the linear model y = w x + b: its loss as surface and contours, with a path per batch size."""

from __future__ import annotations

import math
from typing import Any

from rueda.records.descent import GradientDescent, squared_error
from rueda.report.escape import Label
from rueda.report.figures.parts import powers
from rueda.report.model import short
from rueda.report.plot import Plot
from rueda.terminal.numbers import count

_COLOURS = ("@red", "@sky", "@purple", "@green", "@orange", "@ink", "@blue", "@muted")
_WS = [index / 3 for index in range(61)]
_BS = [-18 + 2 * index / 3 for index in range(61)]
_AXES = {"xaxis": {"title": "w", "range": [0, 20]}, "yaxis": {"title": "b", "range": [-18, 22]}}
_LEGEND = {
    "orientation": "h", "yanchor": "top", "x": 0.5, "xanchor": "center", "font": {"size": 12}, "traceorder": "reversed",
}  # fmt: skip


def surface(found: GradientDescent) -> Plot:
    """Draw the loss over slope and intercept in three dimensions."""
    heights = _heights(found)
    low, high = (10 ** end(end(row) for row in heights) for end in (min, max))
    ticks = powers(low, high, 10)
    ground = {
        "type": "surface", **_grid(heights), "colorscale": "Cividis", "showscale": False, "showlegend": False,
        "contours": {"z": {"show": True, "usecolormap": False, "color": "rgba(255,255,255,.35)", "width": 1}},
        "hovertemplate": "w %{x:.2f}, b %{y:.2f}",
    }  # fmt: skip
    paths = [
        {**path, "type": "scatter3d", "line": {**path["line"], "width": 4 + index},
         "z": [short(math.log10(max(loss, 1e-9)) + 0.06) for loss in record.loss]}
        for index, (path, record) in enumerate(zip(_paths(found), found.paths, strict=True))
    ]  # fmt: skip
    layout = {
        "showlegend": True, "margin": {"l": 0, "r": 0, "t": 0, "b": 0}, "dragmode": "turntable",
        "legend": {**_LEGEND, "y": -0.02},
        "scene": {
            **_AXES,
            "zaxis": {"title": "loss", "tickvals": [math.log10(tick) for tick in ticks],
                      "ticktext": [count(tick) for tick in ticks]},
            "camera": {"eye": {"x": 0.3, "y": -1.6, "z": 1.15}, "center": {"x": 0, "y": 0, "z": -0.15}},
            "aspectratio": {"x": 1, "y": 1, "z": 0.7},
        },
    }  # fmt: skip
    return Plot(
        name="surface", title="The loss surface of the linear model", traces=[ground, *reversed(paths)], layout=layout,
        note="Mean squared error over slope w and intercept b, on a logarithmic scale; a path for each batch size.",
        height=460, half=True, narrow={"scene.camera.eye": {"x": 0.4, "y": -2.1, "z": 1.5}},
    )  # fmt: skip


def contours(found: GradientDescent) -> Plot:
    """Draw the same loss as contours."""
    ground = {
        "type": "contour", **_grid(_heights(found)), "colorscale": "Cividis", "showscale": False, "opacity": 0.55,
        "ncontours": 18, "line": {"width": 0.5}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    paths = [
        {**path, "type": "scatter", "line": {**path["line"], "width": 1.5 + 0.8 * index}}
        for index, path in enumerate(_paths(found))
    ]
    layout = {**_AXES, "showlegend": True, "legend": {**_LEGEND, "y": -0.14}}
    return Plot(
        name="contours", title="The same from above", traces=[ground, *reversed(paths)], layout=layout, height=460,
        half=True,
    )  # fmt: skip


def _heights(found: GradientDescent) -> list[list[float]]:
    """Compute the logarithm of the mean squared error on a grid, from the moments of the data."""
    mean = found.data.moments()
    return [[round(math.log10(max(squared_error(mean, w, b), 1e-9)), 4) for w in _WS] for b in _BS]


def _grid(heights: list[list[float]]) -> dict[str, Any]:
    return {"x": [short(w) for w in _WS], "y": [short(b) for b in _BS], "z": heights}


def _paths(found: GradientDescent) -> list[dict[str, Any]]:
    """Return what both figures show of each path; those of small batches are thinner and on top, since they overlap."""
    return [
        {
            "name": f"batch {count(path.batch)}", "mode": "lines", "x": [short(w) for w in path.w],
            "y": [short(b) for b in path.b], "line": {"color": _COLOURS[index % len(_COLOURS)]},
            "customdata": [float(f"{loss:.0f}" if loss >= 1000 else f"{loss:.3g}") for loss in path.loss],
            "hovertemplate": Label(
                "%{fullData.name}, step %{pointNumber}<br>loss %{customdata:,}<br>w %{x:.2f}, b %{y:.2f}"
            ),
        }
        for index, path in enumerate(found.paths)
    ]  # fmt: skip
