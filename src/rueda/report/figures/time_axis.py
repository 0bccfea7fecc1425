"""The axis along which runs advance: epochs, updates or seconds, chosen for all figures of a section at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.report.figures.parts import finite, log_axis, one_two_five
from rueda.report.model import Line, Section
from rueda.report.plot import Fit, Span, Switch, View, log_start

AXES = ("epochs", "updates", "seconds")
LONG = 4.0
"""The axis is logarithmic if a run is so many times longer than the lower quartile of all: N workers make N times fewer
updates in an epoch and one row may train for many epochs, which would squeeze the others into a corner."""
_QUARTILE = 0.25


def time_switch(section: Section, runs: Sequence[Line], *, is_schedule: bool) -> Switch:
    """Let the reader choose the horizontal axis.

    Args:
        section: all its runs decide about the ticks.
        runs: the traces of the figure, in their order.
        is_schedule: the figure shows what was used up to each point, from the start of the run on.
    """
    return Switch(
        name="axis", label="against",
        views={
            axis: View(
                label=axis, all_traces={"meta.1": axis}, changes={"xaxis": _axis(section, axis, is_schedule)},
                traces=[
                    {"x": _times(run, axis, is_schedule), "spans.x": _span(run, axis, is_schedule)} for run in runs
                ],
            )
            for axis in AXES
        },
    )  # fmt: skip


def _times(run: Line, axis: str, is_schedule: bool) -> list[float | None]:
    # A value of a schedule was used before its row was written, the first one from the start on. A logarithmic axis
    # has no zero: a point far to the left of its beginning is drawn alike.
    return [1e-9, *run.schedule[axis]] if is_schedule else run.progress[axis]


def _span(run: Line, axis: str, is_schedule: bool) -> Span | None:
    measured = finite(run.progress[axis])
    shown = finite(run.schedule[axis]) if is_schedule else measured
    if not shown:
        return None
    first, first_measured = (
        min((value for value in values if value > 0), default=None) for values in (shown, measured)
    )
    end = max(measured, default=0.0)
    size = None if run.diverged or end <= 0 else end
    if first is None or first_measured is None:
        return Span(low=0.0, high=max(shown))
    return Span(
        low=0.0, high=max(shown), small=size, large=size,
        starts=(first, first_measured / 10) if is_schedule else (first,),
    )  # fmt: skip


def _axis(section: Section, axis: str, is_schedule: bool) -> dict[str, Any]:
    title, suffix = axis, ""
    if axis == "seconds":
        title = "seconds of training"
        suffix = " (rehearsed runs: of one process)" * any(line.rehearsed for line in section.lines)
    spans = [span for line in section.lines if (span := _span(line, axis, is_schedule))]
    start = log_start(spans)
    end = max((span.high for span in spans), default=1.0)
    ticks = [] if start is None else one_two_five(start / 2, end * 1.06, decades=4)
    fit = Fit(
        pad=0.02, least=0.0, ratio=LONG, rank=_QUARTILE, log_pads=(2.0 if is_schedule else 1.15, 1.06),
        log=log_axis(f"{title}, logarithmic{suffix}", ticks, tickangle=0, dtick=None),
    )  # fmt: skip
    return {"title": title + suffix, "fit": fit, "dtick": 1 if axis == "epochs" and _usual(spans) <= 12 else None}


def _usual(spans: Sequence[Span]) -> float:
    """Give where the runs end that a linear axis shows together."""
    ends = sorted(span.large for span in spans if span.large is not None)
    if not ends:
        return max((span.high for span in spans), default=1.0)
    return max(end for end in ends if end < LONG * ends[int((len(ends) - 1) * _QUARTILE)])
