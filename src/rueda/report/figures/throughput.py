"""Throughput against local batch: how many images a second one worker trains on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rueda.records.throughput import Throughput
from rueda.report.figures.parts import curve, log_axis, spread, thinned, upright
from rueda.report.plot import Plot
from rueda.terminal.numbers import count


def throughput(found: Throughput) -> Plot:
    """Draw the speed at each batch, and where it saturates."""
    points = sorted(found.points, key=lambda point: point.batch)
    batches, end = [point.batch for point in points], found.saturates_at
    speeds, spreads = [point.images_per_second for point in points], [point.spread for point in points]
    layout: dict[str, Any] = {
        "xaxis": log_axis("local batch", thinned(batches, 10), tickangle=0),
        "yaxis": {"title": "images per second", "rangemode": "tozero"},
    }
    if end is not None:
        layout["shapes"] = [upright(end)]
        layout["annotations"] = [
            {"x": math.log10(end), "y": 0.04, "yref": "paper", "xanchor": "right", "xshift": -6, "showarrow": False,
             "text": f"saturates at {count(end)}", "font": {"color": "@red"}}
        ]  # fmt: skip
    return Plot(
        name="throughput", title="Throughput against local batch", traces=[speed_line(batches, speeds, spreads)],
        layout=layout, half=True, narrow={"xaxis": log_axis("local batch", thinned(batches, 5), tickangle=0)},
    )  # fmt: skip


def speed_line(batches: Sequence[int], speeds: Sequence[float], spreads: Sequence[float]) -> dict[str, Any]:
    """Draw images per second against the batch."""
    return curve(
        batches, speeds, "@blue", width=2.5, mode="lines+markers", marker={"size": 7}, showlegend=False,
        error_y=spread(spreads, "@blue", thickness=1.2), hovertemplate="batch %{x:,}: %{y:,.0f} images/s",
    )  # fmt: skip
