"""Figures of the parallel forms: memory, bytes and idle time, measured beside predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rueda.records.parallelism import KINDS, MeasuredForm, Parallelism, WorkerMemory
from rueda.report.figures.parts import LEGEND_ABOVE
from rueda.report.plot import Plot

_PARTS: dict[str, tuple[str, str]] = {
    "parameters": ("parameters", "@blue"), "gradients": ("gradients", "@sky"), "optimizer": ("optimizer", "@purple"),
    "gathered": ("gathered layer", "@orange"), "activations": ("activations", "@green"),
}  # fmt: skip
_KIND_COLOURS = dict(zip(KINDS, ("@sky", "@blue", "@green", "@orange"), strict=True))


def memory_plot(found: Parallelism) -> Plot:
    """Draw the memory of a worker in each form by what it is for, measured beside predicted."""
    traces = []
    for name, (label, colour) in _PARTS.items():
        measured, predicted = (_part(found.forms, name, of) for of in (_measured, _predicted))
        if any(measured) or any(predicted):
            traces.append(_bars(found, measured, predicted, label, colour))
    return _pairs("form-memory", "Memory of a worker", found, traces, "bytes")


def bytes_plot(found: Parallelism) -> Plot:
    """Draw the bytes that a worker sends in a step by what they carry, measured beside predicted."""
    traces = []
    for kind in KINDS:
        measured = [sum(one.num_bytes for one in form.traffic if one.carries == kind) for form in found.forms]
        predicted = [
            sum(one.num_bytes for one in form.predicted.traffic if one.carries == kind) for form in found.forms
        ]
        if any(measured) or any(predicted):
            traces.append(_bars(found, measured, predicted, kind, _KIND_COLOURS[kind]))
    return _pairs("form-bytes", "Bytes that a worker sends in a step", found, traces, "bytes")


def idle_plot(found: Parallelism) -> Plot:
    """Draw the idle share of pipelines, measured beside predicted."""
    measured = [form.idle or 0.0 for form in found.forms]
    predicted = [form.schedule_idle or form.predicted.bubble for form in found.forms]
    traces = [_bars(found, measured, predicted, "idle", "@red")]
    plot = _pairs("form-idle", "Share of a step in which a worker waits", found, traces, "share")
    plot.layout["yaxis"] |= {"tickformat": ".0%"}
    return plot


def _measured(form: MeasuredForm) -> WorkerMemory:
    return form.memory


def _predicted(form: MeasuredForm) -> WorkerMemory:
    return form.predicted.memory


def _part(forms: Sequence[MeasuredForm], name: str, of: Callable[[MeasuredForm], WorkerMemory]) -> list[float]:
    return [float(getattr(of(form), name)) for form in forms]


def _bars(
    found: Parallelism, measured: Sequence[float], predicted: Sequence[float], label: str, colour: str
) -> dict[str, Any]:  # fmt: skip
    values = [value for pair in zip(measured, predicted, strict=True) for value in pair]
    return {
        "type": "bar", "x": _names(found), "y": values,
        "name": label, "marker": {"color": colour}, "hovertemplate": f"{label}: %{{y:.4s}}",
    }  # fmt: skip


def _names(found: Parallelism) -> list[str]:
    return [f"{form.form}, {what}" for form in found.forms for what in ("measured", "predicted")]


def _pairs(name: str, title: str, found: Parallelism, traces: list[dict[str, Any]], axis: str) -> Plot:
    layout = {
        "barmode": "stack", "showlegend": True, "legend": LEGEND_ABOVE, "bargap": 0.3,
        "xaxis": {"title": "", "tickangle": -30, "automargin": True}, "yaxis": {"title": axis, "rangemode": "tozero"},
    }  # fmt: skip
    return Plot(name=name, title=title, traces=traces, layout=layout, half=True, height=420)
