"""The hundred points and a line that the learner lays through them by hand."""

from __future__ import annotations

from functools import cache

from rueda.records.descent import Points, squared_error
from rueda.report.model import short
from rueda.report.plot import Plot
from rueda.study.gradient_descent import NOISE, points


@cache
def the_points(noise: float = NOISE) -> Points:
    """Return the points of the lab: those of the first seed.

    >>> len(the_points().x)
    100
    """
    x, y = points(1, noise=noise)
    return Points(x=tuple(x[0].tolist()), y=tuple(y[0].tolist()))


def best_loss(noise: float = NOISE) -> float:
    """Return the least mean squared error that a line can have on the points."""
    data = the_points(noise)
    return squared_error(data.moments(), *data.best_line())


def line_by_hand(w: float, b: float) -> Plot:
    """Draw the points and a line; the title has its loss.

    >>> line_by_hand(10.0, 2.0).title
    'Mean squared error: 94.8'
    """
    data = the_points()
    loss = squared_error(data.moments(), w, b)
    ends = [0.0, 10.0]
    shown = f"{loss:,.0f}" if loss >= 1000 else f"{loss:.1f}"
    line = f"y = {w:g} x {'−' if b < 0 else '+'} {abs(b):g}"
    return Plot(
        name="line", title=f"Mean squared error: {shown}",
        note=f"The line {line}, and for five points the errors whose squares are averaged.",
        traces=[
            {"x": [short(x) for x in data.x], "y": [short(y) for y in data.y], "mode": "markers", "name": "points",
             "marker": {"color": "@blue", "size": 6, "opacity": 0.75}, "hovertemplate": "x %{x:.2f}, y %{y:.1f}"},
            *({"x": [short(x)] * 2, "y": [short(y), short(w * x + b)], "mode": "lines", "showlegend": False,
               "line": {"color": "@orange", "width": 1.5}, "hoverinfo": "skip"}
              for x, y in list(zip(data.x, data.y, strict=True))[:5]),
            {"x": ends, "y": [w * x + b for x in ends], "mode": "lines", "name": "line",
             "line": {"color": "@red", "width": 3}, "hoverinfo": "skip"},
        ],
        layout={"xaxis": {"title": "x", "range": [0, 10]}, "yaxis": {"title": "y", "range": [-30, 150]}}, height=340,
    )  # fmt: skip
