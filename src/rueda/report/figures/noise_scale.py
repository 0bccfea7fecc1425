"""The gradient noise scale during training: a line for each run, with its interval as a band and its global batch."""

from __future__ import annotations

from typing import Any

from rueda.report.escape import lines
from rueda.report.figures.parts import area, curve, log_axis, one_two_five
from rueda.report.figures.styles import styles
from rueda.report.model import Line, Section
from rueda.report.plot import Plot

NOTE = (
    "S / |G|² in examples, a moving average; shaded: its interval, which reaches the top where it has no upper end. "
    "Dotted: the global batch. Far below the noise scale, twice the batch halves the updates; far above it, "
    "it saves almost none."
)


def add_noise_scale(section: Section) -> None:
    """Add the figure to a section if one of its runs measured the noise scale."""
    runs = [line for line in section.lines if any(value is not None for value in line.noise.get("value", []))]
    if not runs:
        return
    measured = [line.noise.get(name, []) for line in runs for name in ("value", "low", "high", "global_batch")]
    known = [value for column in measured for value in column if value is not None and value > 0]
    if not known:  # nothing that a logarithmic axis can show
        return
    bottom, top = min(known) / 1.5, max(known) * 1.5
    looks = styles(section)
    traces = [trace for line in runs for trace in _traces(line, *looks[line.entry], bottom, top)]
    layout = {"xaxis": "updates", "yaxis": log_axis("examples", one_two_five(bottom, top)), "showlegend": True}
    section.plots.append(
        Plot(name="noise-scale", title="Gradient noise scale", traces=traces, layout=layout, note=NOTE)
    )


def _traces(line: Line, colour: str, dash: str, bottom: float, top: float) -> list[dict[str, Any]]:
    steps, values = line.noise["updates"], line.noise["value"]
    empty: list[float | None] = [None] * len(steps)
    lows = [bottom if low is None or low <= 0 else low for low in line.noise.get("low", empty)]
    highs = [top if high is None else high for high in line.noise.get("high", empty)]
    hue, shared = f"@{colour}", {"legendgroup": f"run-{line.entry}", "name": line.name}
    told = lines(
        "%{fullData.name}: %{y:,.0f} examples after %{x:,} updates", "(%{customdata[0]:,.0f} to %{customdata[1]:,.0f})"
    )
    interval = [list(pair) for pair in zip(lows, highs, strict=True)]
    return [
        area(steps, lows, highs, hue, 0.18, showlegend=False, **shared),
        curve(steps, values, hue, dash=dash, customdata=interval, hovertemplate=told, **shared),
        curve(
            steps, line.noise.get("global_batch", empty), hue, dash="dot", width=1.5, shape="hv", showlegend=False,
            hovertemplate="%{fullData.name}: global batch %{y:,}", **shared,
        ),
    ]  # fmt: skip
