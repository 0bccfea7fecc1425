"""Loss surfaces in three dimensions and as contours, several side by side on one scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rueda.records.landscape import Surface, TrainingPath
from rueda.report.escape import lines
from rueda.report.figures.parts import round_ticks
from rueda.report.figures.styles import brief
from rueda.report.plot import Plot, View, own_switch
from rueda.terminal.numbers import percent

_HEAD, _FOOT = 46, 50
"""pixels above a panel, for its two lines of heading, and below it, for its axis"""
_LONGEST = 34
"""the most characters of a heading: a longer one would overlap the next panel's"""

_CAMERA = {"eye": {"x": 1.0, "y": -1.79, "z": 0.8}, "center": {"x": -0.12, "y": -0.08, "z": -0.18}}
"""as near as possible while the titles of all axes are visible in a square panel"""

Choice = tuple[str, str]
"""a split, and ``loss`` or ``error``"""
_TRAIL: Choice = ("", "trail")


def surface_plot(kind: str, surfaces: Sequence[tuple[str, Surface]]) -> Plot:
    """Draw surfaces in three dimensions on one scale; a switch chooses the split and loss or error."""
    limits = _all_limits(surfaces)
    first = next(iter(limits))
    drawn: list[tuple[Choice, dict[str, Any]]] = []
    wide, small = (
        _Panels(len(surfaces), 400 if len(surfaces) == 1 else 320),
        _Panels(len(surfaces), 280, most_columns=1),
    )
    layout: dict[str, Any] = {"margin": {"l": 0, "r": 0, "t": 0, "b": 0}, "dragmode": "turntable"}
    layout["annotations"] = wide.headings(surfaces)
    stacked: dict[str, Any] = {"annotations": small.headings(surfaces)}
    scenes = [f"scene{number}" for number in _numbers(surfaces)]
    for index, (scene, (name, surface)) in enumerate(zip(scenes, surfaces, strict=True)):
        stacked[f"{scene}.domain"] = {"x": small.across(index), "y": small.upwards(index)}
        first_title, second_title = _axes(surface)
        layout[scene] = {
            "domain": {"x": wide.across(index), "y": wide.upwards(index)},
            "xaxis": first_title, "yaxis": second_title, "zaxis": _upright(limits[first], first),
            "camera": _CAMERA,
            "aspectratio": {"x": 1, "y": 1, "z": 0.8},
        }  # fmt: skip
        for choice, trace in _traces(name, surface, limits):
            floor, top = limits[choice]
            colours = {"cmin": floor, "cmax": top, "colorscale": "Cividis", "showscale": False}
            drawn.append((choice, {**trace, "type": "surface", "scene": scene, **colours}))
        if surface.trail is not None:
            drawn.append((_TRAIL, _trail_above(surface, surface.trail, scene)))
    views = []
    for choice in limits:
        changes = {f"{scene}.zaxis": _upright(limits[choice], choice) for scene in scenes}
        # The path lies on the loss of the training examples, and belongs to no other picture.
        visible = [{"visible": one == choice or (one == _TRAIL and choice == first)} for one, _ in drawn]
        views.append(View(label=_label(*choice), traces=visible, changes=changes))
    title = "The loss surface" if kind == "landscape" else "The surface along the training path"
    return Plot(
        name=f"{kind}-surface", title=title, traces=[trace for _, trace in drawn], layout=layout, narrow=stacked,
        switches=own_switch(f"{kind}-surface", views),
        height=wide.height, narrow_height=small.height, half=len(surfaces) == 1,
        note="Drag to turn. One scale for all." if len(surfaces) > 1 else "Drag to turn.",
    )  # fmt: skip


def contour_plot(kind: str, surfaces: Sequence[tuple[str, Surface]]) -> Plot:
    """Draw surfaces as contours, with the training path if there is one."""
    limits = _all_limits(surfaces)
    drawn: list[tuple[Choice, dict[str, Any]]] = []
    wide = _Panels(len(surfaces), 310, foot=_FOOT, gap=0.09)
    small = _Panels(len(surfaces), 260, foot=_FOOT, most_columns=1)
    layout: dict[str, Any] = {"margin": {"l": 56, "r": 16, "t": 0, "b": 0}, "annotations": wide.headings(surfaces)}
    layout["coloraxis"] = {"colorscale": "Cividis", "colorbar": {"thickness": 14, "len": 0.8, "outlinewidth": 0,
        "tickformat": ".0%", "title": {"side": "top"}}}  # fmt: skip
    stacked: dict[str, Any] = {"annotations": small.headings(surfaces), **_LYING_BAR}
    for index, (number, (name, surface)) in enumerate(zip(_numbers(surfaces), surfaces, strict=True)):
        stacked |= {f"xaxis{number}.domain": small.across(index), f"yaxis{number}.domain": small.upwards(index)}
        first_title, second_title = _axes(surface)
        # One scale for both axes, so that a round basin looks round; the panel shrinks to the grid.
        layout[f"xaxis{number}"] = {"title": first_title, "domain": wide.across(index), "anchor": f"y{number}",
            "range": [surface.x[0], surface.x[-1]], "constrain": "domain"}  # fmt: skip
        layout[f"yaxis{number}"] = {"title": second_title, "domain": wide.upwards(index), "anchor": f"x{number}",
            "range": [surface.y[0], surface.y[-1]], "constrain": "domain", "scaleanchor": f"x{number}"}  # fmt: skip
        axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        for choice, trace in _traces(name, surface, limits):
            floor, top = limits[choice]
            levels = {"start": floor, "end": top, "size": (top - floor) / 16}
            shared = {"coloraxis": "coloraxis", "contours": levels, "line": {"width": 0.6}}
            drawn.append((choice, {**trace, **axes, "type": "contour", **shared}))
        drawn.append((_TRAIL, {**_marks(surface), **axes}))
    views = []
    for choice in limits:
        visible = [{"visible": one in (choice, _TRAIL)} for one, _ in drawn]
        views.append(View(label=_label(*choice), traces=visible, changes=_bar(limits[choice], choice)))
    note = "Lines of equal height, on a logarithmic scale for the loss; one scale for all. The cross marks the model."
    if kind == "path":
        rebuilt = any(surface.trail is not None and surface.trail.rebuilt_start for _, surface in surfaces)
        start = ", the initial model built again from the seed" if rebuilt else ""
        note += (
            " Axes: principal components of the path, and their shares of its variance. Dots are the kept checkpoints; "
            f"the path begins at the square{start}."
        )
    title = "The same from above" if kind == "landscape" else "The training path from above"
    return Plot(
        name=f"{kind}-contours", title=title, traces=[trace for _, trace in drawn], layout=layout, narrow=stacked,
        switches=own_switch(f"{kind}-contours", views), note=note,
        height=wide.height, narrow_height=small.height + 70, half=len(surfaces) == 1,
    )  # fmt: skip


def _numbers(surfaces: Sequence[tuple[str, Surface]]) -> list[str]:
    """Return the suffixes of plotly's axes for each panel; the first has none."""
    return ["", *(str(number) for number in range(2, len(surfaces) + 1))]


def _traces(name: str, surface: Surface, choices: Iterable[Choice]) -> Iterator[tuple[Choice, dict[str, Any]]]:
    """Yield what both figures of a surface draw for each choice; only the first is visible."""
    for index, choice in enumerate(choices):
        rows = _values(surface, *choice)
        if rows is not None:
            yield choice, {
                "x": rounded(surface.x), "y": rounded(surface.y), "z": _heights(rows, choice), "text": rows,
                "visible": index == 0, "name": name,
                "hovertemplate": f"%{{x:.3g}}, %{{y:.3g}}: {choice[1]} %{{text:.4g}}",
            }  # fmt: skip


def _marks(surface: Surface) -> dict[str, Any]:
    """Return the marker of the model, or the line of its training path."""
    shared: dict[str, Any] = {"type": "scatter", "showlegend": False}
    trail = surface.trail
    if trail is None:
        cross = {"symbol": "x-thin", "size": 10, "line": {"color": "#ffffff", "width": 2}}
        return {**shared, "x": [0.0], "y": [0.0], "mode": "markers", "marker": cross, "hovertemplate": "the model"}
    loss = [[f"training loss {value:.4g}"] for value in trail.loss] or [[]] * len(trail.steps)
    symbols = ["square", *["circle"] * (len(trail.steps) - 2), "x"] if len(trail.steps) > 1 else ["x"]
    return {
        **shared, "x": rounded(trail.x), "y": rounded(trail.y), "mode": "lines+markers",
        "line": {"color": "#ffffff", "width": 2},
        "marker": {"color": "#e66100", "size": 7, "symbol": symbols, "line": {"color": "#ffffff", "width": 1}},
        "text": [lines(f"after {step:,} updates", *more) for step, more in zip(trail.steps, loss, strict=False)],
        "hovertemplate": "%{text}",
    }  # fmt: skip


def _trail_above(surface: Surface, trail: TrainingPath, scene: str) -> dict[str, Any]:
    """Return the training path, slightly above the height of the nearest grid point."""
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
        "type": "scatter3d", "scene": scene, "mode": "lines+markers", "x": rounded(trail.x), "y": rounded(trail.y),
        "z": heights, "line": {"color": "#e66100", "width": 5}, "marker": {"color": "#e66100", "size": 3},
        "text": [f"after {step:,} updates" for step in trail.steps], "hovertemplate": "%{text}", "showlegend": False,
    }  # fmt: skip


def _all_limits(surfaces: Sequence[tuple[str, Surface]]) -> dict[Choice, list[float]]:
    """Return the choices with their limits: training loss, test loss, then the errors."""
    sheets = surfaces[0][1].sheets
    choices = [(sheet.split, "loss") for sheet in sheets]
    choices += [(sheet.split, "error") for sheet in sheets if sheet.error is not None]
    return {choice: _limits(surfaces, choice) for choice in choices}


def _values(surface: Surface, split: str, measure: str) -> list[list[float | None]] | None:
    sheet = next((sheet for sheet in surface.sheets if sheet.split == split), None)
    rows = None if sheet is None else sheet.loss if measure == "loss" else sheet.error
    return None if rows is None else [rounded(row) for row in rows]


def _limits(surfaces: Sequence[tuple[str, Surface]], choice: Choice) -> list[float]:
    """Return the range of heights over all models, cut so that one overflowing point does not flatten the rest."""
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
    """Return the vertical axis: a loss is drawn as its logarithm, with ticks that show the loss."""
    return {"title": choice[1], "range": limits, **_ticks(limits, choice)}


_LYING_BAR = {
    f"coloraxis.colorbar.{name}": value
    for name, value in {
        "orientation": "h", "len": 0.9, "x": 0.5, "xanchor": "center", "yref": "container", "y": 0, "yanchor": "bottom",
        "title.side": "right",
    }.items()
}  # fmt: skip
"""the colour bar on a phone: horizontal, below the figure"""


def _bar(limits: list[float], choice: Choice) -> dict[str, Any]:
    """Return the changes that fit the colour bar to a choice."""
    found: dict[str, Any] = {f"colorbar.{name}": value for name, value in _ticks(limits, choice).items()}
    found |= {"colorbar.title.text": choice[1], "cmin": limits[0], "cmax": limits[1]}
    return {f"coloraxis.{name}": value for name, value in found.items()}


def _ticks(limits: list[float], choice: Choice) -> dict[str, Any]:
    """Return ticks that show losses at their logarithms, and errors as percentages."""
    if choice[1] != "loss":
        return {"tickmode": "auto", "tickformat": ".0%"}
    ticks = round_ticks(*(10.0**end for end in limits))
    return {
        "tickmode": "array",
        "tickvals": [_log(tick) for tick in ticks],
        "ticktext": [f"{tick:g}" for tick in ticks],
    }


def _heights(rows: list[list[float | None]], choice: Choice) -> list[list[float | None]]:
    """Return the values for colours and contours: the logarithm of a loss, or the error itself."""
    if choice[1] != "loss":
        return rows
    return [[None if value is None else _log(value) for value in row] for row in rows]


@dataclass(frozen=True)
class _Panels:
    """The arrangement of a figure's panels: equal sizes, left to right, top to bottom; four panels form a square."""

    total: int
    panel: int
    """its height in pixels"""
    most_columns: int = 3
    foot: int = 0
    gap: float = 0.02
    """between columns, as a share of the figure's width"""

    @property
    def columns(self) -> int:
        """Panels in a row."""
        return -(-self.total // -(-self.total // self.most_columns))

    @property
    def row(self) -> int:
        """Pixels of a row with its heading and its axis."""
        return _HEAD + self.panel + self.foot

    @property
    def height(self) -> int:
        """Pixels of the figure."""
        return self.row * -(-self.total // self.columns)

    def across(self, index: int) -> list[float]:
        """Return a panel's left and right end.

        >>> [[round(end, 4) for end in _Panels(3, 300, gap=0.1).across(index)] for index in range(3)]
        [[0.0, 0.2667], [0.3667, 0.6333], [0.7333, 1.0]]
        """
        width = (1 - (self.columns - 1) * self.gap) / self.columns
        left = (index % self.columns) * (width + self.gap)
        return [left, left + width]

    def upwards(self, index: int) -> list[float]:
        """Return a panel's lower and upper end."""
        top = self.height - self.row * (index // self.columns) - _HEAD
        return [(top - self.panel) / self.height, top / self.height]

    def headings(self, surfaces: Sequence[tuple[str, Surface]]) -> list[dict[str, Any]]:
        """Return the headings of all panels."""
        return [part for index, (name, _) in enumerate(surfaces) for part in self._heading(index, name)]

    def _heading(self, index: int, name: str) -> list[dict[str, Any]]:
        """Return a model's name above its panel, with what follows the first comma (its workers) on a second line."""
        (left, right), (_, top) = self.across(index), self.upwards(index)
        first, _, more = name.partition(", ")
        at = {"x": (left + right) / 2, "y": top, "xref": "paper", "yref": "paper", "yanchor": "bottom",
              "xanchor": "center", "showarrow": False}  # fmt: skip
        found: list[dict[str, Any]] = [
            {**at, "text": brief(first, _LONGEST), "yshift": 16 * bool(more), "font": {"size": 14}}
        ]
        if more:
            found.append({**at, "text": brief(more, _LONGEST), "font": {"size": 12, "color": "@muted"}})
        return found


def _axes(surface: Surface) -> tuple[str, str]:
    if surface.trail is None:
        return "x", "y"
    first, second = surface.trail.explained
    return f"first, {percent(first)}", f"second, {percent(second)}"


def _label(split: str, measure: str) -> str:
    return f"{split_name(split)} {measure}"


def split_name(split: str) -> str:
    """Return the page's word for a split."""
    return "training" if split == "train" else split


def _log(value: float) -> float:
    return float(f"{math.log10(max(value, 1e-9)):.5g}")


def rounded(values: Sequence[float]) -> list[float | None]:
    """Round to five significant digits; values that are not finite become None."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
