"""The horizontal axis of runs: epochs, updates or seconds, switched for all figures of a section together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rueda.report.figures.parts import finite, log_axis, one_two_five
from rueda.report.model import Line, Section
from rueda.report.plot import Fit, Span, Switch, View, log_start

AXES = ("epochs", "updates", "seconds")
LONG = 4.0
"""The axis of updates or seconds is logarithmic if a run is this many times longer than the lower quartile: N workers
make N times fewer updates per epoch, and a linear axis would squeeze them into a corner. Epochs are always linear."""
_QUARTILE = 0.25


def time_switch(section: Section, runs: Sequence[Line], curve: str) -> Switch:
    """Return the switch of the horizontal axis.

    Args:
        section: all its runs determine the ticks.
        runs: the traces of the figure, in their order.
        curve: what the figure shows of each run: progress, rate or batch.
    """
    return Switch(
        name="axis", label="against",
        views={
            axis: View(
                label=axis, all_traces={"meta.1": axis}, changes={"xaxis": _axis(section, axis, curve)},
                traces=[
                    {"x": getattr(run, curve)[axis], "spans.x": _span(section, run, axis, curve)} for run in runs
                ],
            )
            for axis in AXES
        },
    )  # fmt: skip


def is_long(section: Section, run: Line) -> bool:
    """Return whether a run trains for more than twice the median number of epochs: its line may leave the figure.

    The axis then fits the others, so that one row that trains for many epochs does not squeeze them into a corner.
    """
    return _end(run) > 2 * statistics.median_high(map(_end, section.lines))


def _end(run: Line) -> float:
    return max(finite(run.progress["epochs"]), default=0.0)


def _span(section: Section, run: Line, axis: str, curve: str) -> Span | None:
    measured, shown = finite(run.progress[axis]), finite(getattr(run, curve).get(axis, []))
    if not shown:
        return None
    first = min((value for value in measured if value > 0), default=None)
    end = max(measured, default=0.0)
    size = None if run.diverged or end <= 0 or axis == "epochs" else end
    starts = () if first is None else (first if curve == "progress" else first / 10,)
    return Span(low=0.0, high=max(shown), small=size, large=size, starts=starts, is_outlier=is_long(section, run))


def _axis(section: Section, axis: str, curve: str) -> dict[str, Any]:
    title, suffix = axis, ""
    if axis == "seconds":
        title = "seconds of training"
        suffix = " (rehearsed runs: of one process)" * any(line.rehearsed for line in section.lines)
    spans = [span for line in section.lines if (span := _span(section, line, axis, curve))]
    start = log_start(spans)
    end = max((span.high for span in spans), default=1.0)
    ticks = [] if start is None else one_two_five(start / 2, end * 1.06, decades=4)
    fit = Fit(
        pad=0.02, least=0.0, ratio=LONG, rank=_QUARTILE, log_pads=(1.15, 1.06),
        log=log_axis(f"{title}, logarithmic{suffix}", ticks, tickangle=0, dtick=None),
    )  # fmt: skip
    usual = max((span.high for span in spans if not span.is_outlier), default=end)
    return {"title": title + suffix, "fit": fit, "dtick": 1 if axis == "epochs" and usual <= 12 else None}
