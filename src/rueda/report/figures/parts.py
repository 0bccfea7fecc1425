"""Building blocks of figures: colours, lines, shaded areas, and logarithmic axes with ticks at 1, 2 and 5."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rueda.terminal.numbers import count

COLOURS = ("@ink", "@red", "@blue", "@orange", "@green", "@purple", "@sky")
"""colours of the page, in the order in which lines are assigned to them"""

SHARES = ".4~p"
"""Format of fractions as percentages with as many digits as tell the ticks apart: 88 %, 88.5 %, 89 %."""
LEGEND_ABOVE = {
    "orientation": "h", "y": 1, "yanchor": "bottom", "x": 0, "font": {"size": 12},
    "itemclick": False, "itemdoubleclick": False,
}  # fmt: skip
"""A legend above the figure whose entries do not hide traces."""
_SMALLEST, _LARGEST = 1e-307, 1e308  # powers of ten, and their multiples, that a float holds


def colour(index: int) -> str:
    """Return the colour of a line by its index; they repeat.

    >>> colour(1), colour(8)
    ('@red', '@red')
    """
    return COLOURS[index % len(COLOURS)]


def one_two_five(low: float, high: float, decades: float = 3) -> list[float]:
    """List the ticks of a logarithmic axis: 1, 2 and 5 times powers of ten; over more decades, the powers alone.

    >>> one_two_five(0.08, 3), one_two_five(1, 50_000)
    ([0.1, 0.2, 0.5, 1.0, 2.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    low, high = max(low, _SMALLEST), min(high, _LARGEST)  # the caller's margin may make 0 or infinity of a number
    first, last = math.log10(low), math.log10(high)
    powers = range(math.floor(first), math.ceil(last) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in ((1,) if last - first > decades else (1, 2, 5))]
    return [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]


def round_ticks(low: float, high: float) -> list[float]:
    """List at least three ticks: those of :func:`one_two_five`, or where these are fewer, multiples of a round step.

    >>> round_ticks(0.08, 3), round_ticks(1.9, 3.1), round_ticks(0.6912, 0.6931)
    ([0.1, 0.2, 0.5, 1.0, 2.0], [2.0, 2.5, 3.0], [0.6915, 0.692, 0.6925, 0.693])
    """
    ticks = one_two_five(low, high)
    power = math.floor(math.log10(high - low))
    for step in (float(f"{digit}e{power - less}") for less in (0, 1) for digit in (5, 2, 1)):
        if len(ticks) < 3:
            ticks = [float(f"{i * step:.6g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return ticks


def powers(low: float, high: float, base: int) -> list[float]:
    """List the powers of a number between two values.

    >>> powers(60, 512, 2)
    [64.0, 128.0, 256.0, 512.0]
    """
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [float(base) ** power for power in range(first, last + 1)]


def thinned(values: Sequence[float], most: int) -> list[float]:
    """Return every n-th tick, so that at most ``most`` remain.

    >>> thinned([8, 16, 32, 64, 128], 3)
    [8, 32, 128]
    """
    return list(values[:: -(-len(values) // most)])


def upright(x: float, colour: str = "@red", width: float = 1.4, dash: str = "dash") -> dict[str, Any]:
    """Return a vertical line across the figure at a value."""
    line = {"color": colour, "width": width, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def shade(start: float, end: float, colour: str, opacity: float) -> dict[str, Any]:
    """Return a shaded area between two values of the horizontal axis."""
    return {
        "type": "rect", "x0": start, "x1": end, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
        "fillcolor": colour, "opacity": opacity, "line": {"width": 0},
    }  # fmt: skip


def above(x: float, text: str) -> dict[str, Any]:
    """Return a text above the figure."""
    font = {"color": "@muted", "size": 12}
    return {"x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "text": text, "font": font}


def regimes(names: Sequence[str], ends: Sequence[float], shades: Sequence[float]) -> dict[str, list[dict[str, Any]]]:
    """Return shaded parts of a logarithmic axis with names above; parts too narrow for their name are left out."""
    parts = [part for part in zip(names, ends[:-1], ends[1:], shades, strict=True) if part[2] / part[1] >= 1.2]
    return {
        "shapes": [shade(start, end, "@ink", strength) for _, start, end, strength in parts],
        "annotations": [above(math.log10(start * end) / 2, name) for name, start, end, _ in parts],
    }


def curve(x: Sequence[Any], y: Sequence[Any], colour: str, **more: Any) -> dict[str, Any]:
    """Return a line through points; ``width``, ``dash`` and ``shape`` style the line, all else belongs to the trace."""
    line = {"color": colour, "width": 2} | {key: more.pop(key) for key in ("width", "dash", "shape") if key in more}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": line, **more}


def area(
    x: Sequence[Any], low: Sequence[Any], high: Sequence[Any], colour: str, opacity: float, **more: Any
) -> dict[str, Any]:
    """Return the shaded area between two lines."""
    around = {"width": 0, "fill": "toself", "fillcolor": colour, "opacity": opacity, "hoverinfo": "skip"}
    return curve([*x, *reversed(x)], [*high, *reversed(low)], colour, **around, **more)


def error_bars(values: Sequence[Any], colour: str, **more: Any) -> dict[str, Any]:
    """Return error bars."""
    return {"type": "data", "array": list(values), "color": colour, **more}


def finite(values: Sequence[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def log_axis(title: str, ticks: Sequence[float], **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at these values.

    >>> log_axis("workers", [1, 2, 1024])["ticktext"]
    ['1', '2', '1,024']
    """
    return {"title": title, "type": "log", "tickvals": list(ticks), "ticktext": [count(x) for x in ticks], **more}
