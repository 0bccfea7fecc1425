"""The learning rate and the global batch as they were used along each run."""

from __future__ import annotations

from dataclasses import dataclass

from rueda.report.escape import Label
from rueda.report.figures.parts import finite, log_axis, one_two_five, powers
from rueda.report.figures.styles import first_of_rows, run_line
from rueda.report.figures.time_axis import time_switch
from rueda.report.model import Section
from rueda.report.plot import Fit, Plot, Span, log_start

_DEEPEST = 30
"""a logarithmic axis of rates begins at the lowest peak / 30 or above: a cosine ending near 0 needs no seven decades"""


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    name: str
    """the name of the figure and of the field of :class:`~rueda.report.model.Line` that holds the curve"""
    column: str
    title: str
    hover: str
    ratio: float
    """the axis is logarithmic if the peaks (of rates) or all values (of batches) differ by this factor or more"""


_RATE = _Quantity(name="rate", column="rate", title="Learning rate", hover="rate %{y:.4g}", ratio=20.0)
_BATCH = _Quantity(name="batch", column="global_batch", title="Global batch", hover="batch %{y:,}", ratio=2.0)


def rate(section: Section) -> Plot:
    """Draw the learning rate of each run."""
    sources = sorted({line.rate_source for line in section.lines if line.rate}, reverse=True)
    return _plot(section, _RATE, f"After scaling and warm-up, {', or '.join(sources)}.")


def batch(section: Section) -> Plot:
    """Draw the global batch of each run."""
    return _plot(section, _BATCH, "Examples of all workers in an update.")


def _plot(section: Section, what: _Quantity, note: str) -> Plot:
    shown = [line for line in section.lines if getattr(line, what.name)]
    spans = [_span(finite(getattr(line, what.name)[what.column]), what) for line in shown]
    firsts = first_of_rows(shown)
    hover = Label(f"%{{meta[0]}}<br><b>{what.hover}</b> at %{{x:,.4~f}} %{{meta[1]}}")
    traces = [
        {**run_line(section, line), "mode": "lines", "y": getattr(line, what.name)[what.column], "hovertemplate": hover,
         "showlegend": firsts[line.entry] is line, "spans": {"y": span}}
        for line, span in zip(shown, spans, strict=True)
    ]  # fmt: skip
    axis = {"title": what.title.lower(), "fit": _fit(spans, what)}
    return Plot(
        name=what.name, title=what.title, traces=traces, layout={"yaxis": axis}, note=note, half=True,
        switches=[time_switch(section, shown, what.name)], narrow={"xaxis.dtick": None},
    )  # fmt: skip


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
