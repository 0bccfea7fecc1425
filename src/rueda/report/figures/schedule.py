"""The learning rate and the global batch as they were used along each run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rueda.report.escape import Label
from rueda.report.figures.parts import finite, log_axis, one_two_five, powers
from rueda.report.figures.styles import first_of_rows, run_line
from rueda.report.figures.time_axis import time_switch
from rueda.report.model import Line, Section
from rueda.report.plot import Fit, Plot, Span, log_start

_DEEPEST = 30
"""a rate's axis begins at most so many times below the lowest peak: a cosine that ends at 0 needs no seven decades"""


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    name: str
    column: str
    title: str
    hover: str
    ratio: float
    """the axis is logarithmic from this ratio on, of the peaks (a rate) or of all values (a batch)"""


_RATE = _Quantity(name="rate", column="rate", title="Learning rate", hover="rate %{y:.4g}", ratio=20.0)
_BATCH = _Quantity(name="batch", column="global_batch", title="Global batch", hover="batch %{y:,}", ratio=2.0)


def rate(section: Section) -> Plot:
    """Draw the learning rate of each run."""
    return _plot(section, _RATE, f"As used {_how_often(section)}, after scaling and warm-up.")


def batch(section: Section) -> Plot:
    """Draw the global batch of each run."""
    return _plot(section, _BATCH, "Examples of all workers in an update.")


def _plot(section: Section, what: _Quantity, note: str) -> Plot:
    shown = [line for line in section.lines if what.column in line.schedule]
    spans = [_span(finite(line.schedule[what.column]), what) for line in shown]
    parts = zip(shown, first_of_rows(shown), spans, strict=True)
    traces = [
        {**_trace(section, line, what), "showlegend": is_first, "spans": {"y": span}} for line, is_first, span in parts
    ]
    axis = {"title": what.title.lower(), "fit": _fit(spans, what)}
    return Plot(
        name=what.name, title=what.title, traces=traces, layout={"yaxis": axis}, note=note, half=True,
        switches=[time_switch(section, shown, is_schedule=True)], narrow={"xaxis.dtick": None},
    )  # fmt: skip


def _trace(section: Section, line: Line, what: _Quantity) -> dict[str, Any]:
    values = line.schedule[what.column]
    # A row tells what was used up to its end: a value reaches back to the row before, the first one to the start.
    # A line through every update needs no stairs.
    is_coarse = what is _BATCH or len(values) <= len(line.progress["epochs"])
    trace = run_line(section, line)
    trace["line"]["shape"] = "vh" if is_coarse else "linear"
    hover = Label(f"%{{meta[0]}}<br><b>{what.hover}</b> at %{{x:,.4~f}} %{{meta[1]}}")
    return {**trace, "mode": "lines", "y": [values[0], *values], "hovertemplate": hover}


def _span(values: list[float], what: _Quantity) -> Span:
    peak, lowest = max(values), min((value for value in values if value > 0), default=None)
    if lowest is None:
        return Span(low=0.0, high=peak)
    starts = (peak / _DEEPEST, lowest) if what is _RATE else (lowest,)
    return Span(low=0.0, high=peak, small=peak if what is _RATE else lowest, large=peak, starts=starts)


def _fit(spans: list[Span], what: _Quantity) -> Fit:
    low, high = log_start(spans), max(span.high for span in spans)
    if low is None:
        ticks = []
    elif what is _RATE:
        ticks = one_two_five(low / 1.3, high * 1.3, decades=3.3)
    else:
        ticks = powers(low, high, 4 if high / low > 500 else 2)
    log = log_axis(what.title.lower(), ticks, tickangle=0)
    return Fit(pad=1 / 19, least=0.0, ratio=what.ratio, log_pads=(1.3, 1.3), log=log)


def _how_often(section: Section) -> str:
    """Say when the rate was noted; a run may have noted it only with what it measured after each epoch."""
    often = {len(line.schedule["updates"]) > len(line.progress["updates"]) for line in section.lines}
    if often == {True}:
        return "at each update"
    return "at the end of each epoch" if often == {False} else "at each update, or at the end of each epoch"
