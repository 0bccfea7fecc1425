"""The throughput of one worker, in images, examples or other units per second, against its local batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rueda.records.throughput import Throughput
from rueda.report.figures.parts import curve, error_bars, log_axis, thinned, upright
from rueda.report.plot import Plot
from rueda.terminal.numbers import count


def throughput(found: Throughput) -> Plot:
    """Draw the throughput at each batch, and mark where it saturates."""
    points = sorted(found.points, key=lambda point: point.batch)
    speeds, spreads = [point.images_per_second for point in points], [point.spread for point in points]
    batches, end = [point.batch for point in points], found.saturates_at
    plot = speed_plot("throughput", "Throughput against local batch", batches, speeds, spreads, found.unit)
    if end is not None:
        plot.layout["shapes"] = [upright(end)]
        plot.layout["annotations"] = [
            {"x": math.log10(end), "y": 0.04, "yref": "paper", "xanchor": "right", "xshift": -6, "showarrow": False,
             "text": f"saturates at {count(end)}", "font": {"color": "@red-text"}}
        ]  # fmt: skip
    return plot


def speed_plot(
    name: str,
    title: str,
    batches: Sequence[int],
    speeds: Sequence[float],
    spreads: Sequence[float],
    unit: str = "images",
) -> Plot:
    """Draw images or examples per second against the batch."""
    line = curve(
        batches, speeds, "@blue", width=2.5, mode="lines+markers", marker={"size": 7}, showlegend=False,
        error_y=error_bars(spreads, "@blue", thickness=1.2), hovertemplate=f"batch %{{x:,}}: %{{y:,.0f}} {unit}/s",
    )  # fmt: skip
    wide, narrow = (log_axis("local batch", thinned(batches, most), tickangle=0) for most in (10, 5))
    layout = {"xaxis": wide, "yaxis": {"title": f"{unit} per second", "rangemode": "tozero"}}
    return Plot(name=name, title=title, traces=[line], layout=layout, half=True, narrow={"xaxis": narrow})
