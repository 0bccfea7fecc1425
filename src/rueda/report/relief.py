"""Surfaces on the page: in three dimensions and from above, several side by side on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rueda.records.landscape import Surface
from rueda.report.model import Plot, View
from rueda.report.words import percent

SPLITS = {"train": "training", "test": "test"}
"""what the page calls the examples"""
_IN_A_ROW = 3

Choice = tuple[str, str]
"""a split, and ``loss`` or ``error``"""


def relief(kind: str, surfaces: Sequence[tuple[str, Surface]]) -> Plot:
    """Draw surfaces in three dimensions, one scale for all; a switch chooses what is shown."""
    choices = _choices([surface for _, surface in surfaces])
    traces: list[dict[str, Any]] = []
    shown: list[tuple[str, str]] = []
    layout: dict[str, Any] = {"margin": {"l": 0, "r": 0, "t": 16, "b": 0}, "dragmode": "turntable", "annotations": []}
    stacked: dict[str, Any] = {"annotations": []}
    for index, (name, surface) in enumerate(surfaces):
        scene = "scene" if index == 0 else f"scene{index + 1}"
        (left, right), (low, high) = _place(index, len(surfaces))
        _, (bottom, top_edge) = _place(index, len(surfaces), columns=1)
        stacked[f"{scene}.domain"] = {"x": [0, 1], "y": [bottom, top_edge]}
        stacked["annotations"].append(_heading(name, 0.5, top_edge))
        first_title, second_title = _axes(surface)
        layout[scene] = {
            "domain": {"x": [left, right], "y": [low, high]},
            "xaxis": first_title, "yaxis": second_title, "zaxis": _upright(_limits(surfaces, choices[0]), choices[0]),
            "camera": {"eye": {"x": 1.6, "y": -1.6, "z": 1.0}, "center": {"x": 0, "y": 0, "z": -0.1}},
            "aspectratio": {"x": 1, "y": 1, "z": 0.8},
        }  # fmt: skip
        layout["annotations"].append(_heading(name, (left + right) / 2, high))
        for choice in choices:
            rows = _values(surface, *choice)
            if rows is None:
                continue
            floor, top = _limits(surfaces, choice)
            traces.append(
                {
                    "type": "surface", "scene": scene, "x": digits(surface.x), "y": digits(surface.y), "text": rows,
                    "z": _heights(rows, choice), "cmin": floor, "cmax": top, "colorscale": "Cividis",
                    "showscale": False, "visible": choice == choices[0], "name": name,
                    "hovertemplate": f"%{{x:.3g}}, %{{y:.3g}}: {choice[1]} %{{text:.4g}}",
                }
            )  # fmt: skip
            shown.append(choice)
        if surface.trail is not None:
            traces.append(_trail_above(surface, scene))
            shown.append(("", "trail"))
    scenes = [name for name in layout if name.startswith("scene")]
    views = []
    for choice in choices:
        upright = _upright(_limits(surfaces, choice), choice)
        changes = {f"{scene}.zaxis": upright for scene in scenes}
        # The path lies on the loss of the training examples, and belongs to no other picture.
        visible = [one == choice or (one[1] == "trail" and choice == choices[0]) for one in shown]
        views.append(View(label=_label(*choice), visible=visible, changes=changes))
    title = "The loss surface" if kind == "landscape" else "The surface along the training path"
    return Plot(
        name=f"{kind}-surface", title=title, traces=traces, layout=layout, views=views, narrow=stacked,
        height=40 + 400 * _rows(len(surfaces)), narrow_height=40 + 330 * len(surfaces),
        note="Drag to turn. One scale for all." if len(surfaces) > 1 else "Drag to turn.",
    )  # fmt: skip


def contours(kind: str, surfaces: Sequence[tuple[str, Surface]]) -> Plot:
    """Draw surfaces from above, with the path where there is one."""
    choices = _choices([surface for _, surface in surfaces])
    traces: list[dict[str, Any]] = []
    shown: list[tuple[str, str]] = []
    layout: dict[str, Any] = {"margin": {"l": 56, "r": 16, "t": 16, "b": 48}, "annotations": []}
    stacked: dict[str, Any] = {"annotations": []}
    for index, (name, surface) in enumerate(surfaces):
        number = "" if index == 0 else str(index + 1)
        (left, right), (low, high) = _place(index, len(surfaces), gap=0.1)
        _, (bottom, top_edge) = _place(index, len(surfaces), columns=1)
        stacked |= {f"xaxis{number}.domain": [0, 1], f"yaxis{number}.domain": [bottom, top_edge]}
        stacked["annotations"].append(_heading(name, 0.5, top_edge))
        first_title, second_title = _axes(surface)
        layout[f"xaxis{number}"] = {"title": first_title, "domain": [left, right], "anchor": f"y{number}"}
        layout[f"yaxis{number}"] = {"title": second_title, "domain": [low, high], "anchor": f"x{number}"}
        layout["annotations"].append(_heading(name, (left + right) / 2, high))
        for choice in choices:
            rows = _values(surface, *choice)
            if rows is None:
                continue
            floor, top = _limits(surfaces, choice)
            heights = _heights(rows, choice)
            traces.append(
                {
                    "type": "contour", "x": digits(surface.x), "y": digits(surface.y), "z": heights, "text": rows,
                    "xaxis": f"x{number}", "yaxis": f"y{number}", "colorscale": "Cividis", "showscale": False,
                    "contours": {"start": floor, "end": top, "size": (top - floor) / 16},
                    "zmin": floor, "zmax": top, "line": {"width": 0.6}, "opacity": 0.85,
                    "visible": choice == choices[0], "name": name,
                    "hovertemplate": f"%{{x:.3g}}, %{{y:.3g}}: {choice[1]} %{{text:.4g}}",
                }
            )  # fmt: skip
            shown.append(choice)
        traces.append(_marks(surface, number))
        shown.append(("", "trail"))
    views = [
        View(label=_label(*choice), visible=[one == choice or one[1] == "trail" for one in shown]) for choice in choices
    ]
    note = "Lines of equal height, on a logarithmic scale for the loss. The cross marks the model."
    if kind == "path":
        start = ", the initial model built again from the seed" if _rebuilt(surfaces) else ""
        note += (
            " Axes: principal components of the path, and their shares of its variance. Dots are the kept checkpoints; "
            f"the path begins at the square{start}."
        )
    title = "The same from above" if kind == "landscape" else "The training path from above"
    return Plot(
        name=f"{kind}-contours", title=title, traces=traces, layout=layout, views=views, narrow=stacked, note=note,
        height=40 + 380 * _rows(len(surfaces)), narrow_height=40 + 330 * len(surfaces),
    )  # fmt: skip


def _marks(surface: Surface, number: str) -> dict[str, Any]:
    """Mark the model, and the way that led to it."""
    shared: dict[str, Any] = {"type": "scatter", "xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": False}
    trail = surface.trail
    if trail is None:
        cross = {"symbol": "x-thin", "size": 10, "line": {"color": "#ffffff", "width": 2}}
        return {**shared, "x": [0.0], "y": [0.0], "mode": "markers", "marker": cross, "hovertemplate": "the model"}
    loss = [f"¶training loss {value:.4g}" for value in trail.loss] or [""] * len(trail.steps)
    symbols = ["square", *["circle"] * (len(trail.steps) - 2), "x"] if len(trail.steps) > 1 else ["x"]
    return {
        **shared, "x": digits(trail.x), "y": digits(trail.y), "mode": "lines+markers",
        "line": {"color": "#ffffff", "width": 2},
        "marker": {"color": "#e66100", "size": 7, "symbol": symbols, "line": {"color": "#ffffff", "width": 1}},
        "text": [f"after {step:,} updates{more}" for step, more in zip(trail.steps, loss, strict=False)],
        "hovertemplate": "%{text}",
    }  # fmt: skip


def _trail_above(surface: Surface, scene: str) -> dict[str, Any]:
    """Lay the path on the surface: at the height of the nearest point of the grid, a little above."""
    trail = surface.trail
    assert trail is not None
    rows = surface.sheets[0].loss
    heights = []
    for x, y in zip(trail.x, trail.y, strict=True):
        row, column = (
            min(range(len(axis)), key=lambda i, axis=axis, at=at: abs(axis[i] - at))  # type: ignore[misc]
            for axis, at in ((surface.y, y), (surface.x, x))
        )
        value = rows[row][column]
        heights.append(_log(1.05 * value) if math.isfinite(value) else None)
    return {
        "type": "scatter3d", "scene": scene, "mode": "lines+markers", "x": digits(trail.x), "y": digits(trail.y),
        "z": heights, "line": {"color": "#e66100", "width": 5}, "marker": {"color": "#e66100", "size": 3},
        "text": [f"after {step:,} updates" for step in trail.steps], "hovertemplate": "%{text}", "showlegend": False,
    }  # fmt: skip


def _rebuilt(surfaces: Sequence[tuple[str, Surface]]) -> bool:
    return any(surface.trail is not None and surface.trail.rebuilt_start for _, surface in surfaces)


def _choices(surfaces: Sequence[Surface]) -> list[tuple[str, str]]:
    """List what can be shown: training loss first, then test loss, then the errors."""
    sheets = surfaces[0].sheets
    losses = [(sheet.split, "loss") for sheet in sheets]
    return losses + [(sheet.split, "error") for sheet in sheets if sheet.error is not None]


def _values(surface: Surface, split: str, measure: str) -> list[list[float | None]] | None:
    sheet = next((sheet for sheet in surface.sheets if sheet.split == split), None)
    rows = None if sheet is None else sheet.loss if measure == "loss" else sheet.error
    return None if rows is None else [digits(row) for row in rows]


def _limits(surfaces: Sequence[tuple[str, Surface]], choice: Choice) -> list[float]:
    """Give the range over all members, as heights; one peak of a network that overflows must not flatten the rest."""
    values = sorted(
        value for _, surface in surfaces for row in _values(surface, *choice) or () for value in row
        if value is not None and (choice[1] != "loss" or value > 0)
    )  # fmt: skip
    low, high = (values[0], values[-1]) if values else (0.1, 1.0)
    if choice[1] == "loss":
        high = min(high, 1000 * max(values[len(values) // 2], low)) if values else high
        low, high = _log(low), _log(high)
    return [low, high] if high > low else [low, low + 0.1]


def _upright(limits: list[float], choice: Choice) -> dict[str, Any]:
    """Describe the upright axis: a loss is drawn as its logarithm, and its ticks say the loss."""
    if choice[1] != "loss":
        return {"title": choice[1], "range": limits, "tickmode": "auto"}
    low, high = limits
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    if high - low > 3:
        ticks = [10.0**power for power in decades]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {
        "title": choice[1], "range": limits, "tickmode": "array", "tickvals": [_log(tick) for tick in ticks],
        "ticktext": [f"{tick:g}" for tick in ticks],
    }  # fmt: skip


def _heights(rows: list[list[float | None]], choice: Choice) -> list[list[float | None]]:
    """Give what colours and contours stand for: the logarithm of a loss, an error as it is."""
    if choice[1] != "loss":
        return rows
    return [[None if value is None else _log(value) for value in row] for row in rows]


def _rows(total: int) -> int:
    """Count the rows of a figure of several members: 4 stand two by two."""
    return -(-total // _IN_A_ROW)


def _place(
    index: int, total: int, gap: float = 0.03, columns: int | None = None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Give the part of the figure that belongs to a member, left to right, top to bottom."""
    columns = columns or -(-total // _rows(total))
    rows = -(-total // columns)
    column, row = index % columns, index // columns
    room, foot = 0.06 / rows + 0.02, 0.12 / rows  # for the heading above, and for the axis below
    return (
        (column / columns + gap / 2 * (column > 0), (column + 1) / columns - gap / 2 * (column < columns - 1)),
        (1 - (row + 1) / rows + (foot if row < rows - 1 else 0.0), 1 - row / rows - room),
    )


def _axes(surface: Surface) -> tuple[str, str]:
    if surface.trail is None:
        return "x", "y"
    first, second = surface.trail.explained
    return f"first, {percent(first)}", f"second, {percent(second)}"


def _heading(name: str, x: float, y: float) -> dict[str, Any]:
    return {"text": name, "x": x, "y": y, "xref": "paper", "yref": "paper", "yanchor": "bottom", "xanchor": "center",
            "showarrow": False, "font": {"size": 14}}  # fmt: skip


def _label(split: str, measure: str) -> str:
    return f"{SPLITS.get(split, split)} {measure}"


def _log(value: float) -> float:
    return float(f"{math.log10(max(value, 1e-9)):.5g}")


def digits(values: Sequence[float]) -> list[float | None]:
    """Keep five digits; what is not finite is a gap."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
