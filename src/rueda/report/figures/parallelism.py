"""Figures of the parallel forms: who holds which layers and what is exchanged; memory, bytes and idle time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rueda.records.parallelism import KINDS, MeasuredForm, Parallelism, WorkerMemory
from rueda.report.figures.parts import LEGEND_ABOVE
from rueda.report.plot import Plot
from rueda.terminal.numbers import amount

_MOST_LAYERS, _MOST_WORKERS = 8, 4
_COLOURS = ("@blue", "@orange", "@green", "@purple")
"""the colours of the workers in the drawing"""
_PARTS: dict[str, tuple[str, str]] = {
    "parameters": ("parameters", "@blue"), "gradients": ("gradients", "@sky"), "optimizer": ("optimizer", "@purple"),
    "gathered": ("gathered layer", "@orange"), "activations": ("activations", "@green"),
}  # fmt: skip
_KIND_COLOURS = dict(zip(KINDS, ("@sky", "@blue", "@green", "@orange"), strict=True))


def drawing(found: Parallelism) -> list[Plot]:
    """Draw each form as lectures do: a column of layers for each worker, filled where the worker holds it."""
    return [_drawn(found, form, number) for number, form in enumerate(found.forms)]


def _drawn(found: Parallelism, form: MeasuredForm, number: int) -> Plot:
    layers = _shown(list(found.layers))
    workers = min(found.workers, _MOST_WORKERS)
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for worker in range(workers):
        held = set(form.holds[worker]) if worker < len(form.holds) else set(found.layers)
        left = 1.6 * worker
        notes.append(_text(left + 0.5, len(layers) + 0.35, f"worker {worker}", "@ink"))
        for level, layer in enumerate(layers):
            holds = layer in held or layer == "..."
            fraction = _fraction(form.form, found.workers) if holds else 0.0
            offset = worker / found.workers if 0 < fraction < 1 else 0.0
            vertical = "tensor" in form.form
            shapes.append(_box(left, level, 1.0, 0.8, None))
            if fraction:
                wide, high = (fraction, 0.8) if vertical else (1.0, 0.8 * fraction)
                x, y = (left + offset, float(level)) if vertical else (left, level + 0.8 * offset)
                shapes.append(_box(x, y, wide, high, _COLOURS[worker % len(_COLOURS)]))
            notes.append(_text(left + 0.5, level + 0.4, layer if worker == 0 or holds else "", "@ink"))
    for one in form.traffic[:2]:
        height = -0.45 - 0.5 * form.traffic.index(one)
        notes.append(
            _text(0.8 * workers - 0.3, height, f"{one.carries}: {one.collective}, {amount(one.num_bytes)}", "@red-text")
        )
    right = 1.6 * workers - 0.6
    # an invisible trace, since a figure needs one
    trace = {
        "x": [0, right], "y": [0, len(layers)], "mode": "markers", "marker": {"opacity": 0, "color": "@grid"},
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    hidden = {"visible": False, "fixedrange": True}
    layout = {
        "xaxis": {**hidden, "range": [-0.2, right + 0.2]}, "yaxis": {**hidden, "range": [-1.4, len(layers) + 0.8]},
        "shapes": shapes, "annotations": notes,
    }  # fmt: skip
    note = "Filled: what a worker holds. Below: what each worker sends in a step, measured."
    return Plot(
        name=f"form-{'abcdefghijklmnopqrstuvwxyz'[number % 26]}", title=form.form.capitalize(), traces=[trace],
        layout=layout, half=True, height=max(260, 44 * len(layers) + 120), note=note if number == 0 else "",
    )  # fmt: skip


def _fraction(form: str, workers: int) -> float:
    """Return how much of a layer that it holds a worker keeps: all of it, unless it is sharded or split."""
    return 1 / workers if form in ("sharded", "tensor") else 1.0


def _shown(layers: list[str]) -> list[str]:
    """Return the names of at most eight layers; what is left out in the middle becomes three dots."""
    if len(layers) <= _MOST_LAYERS:
        return layers
    half = _MOST_LAYERS // 2
    return [*layers[:half], "...", *layers[-half + 1 :]]


def _box(x: float, y: float, wide: float, high: float, colour: str | None) -> dict[str, Any]:
    fill = {} if colour is None else {"fillcolor": colour, "opacity": 0.45}
    return {
        "type": "rect", "x0": x, "x1": x + wide, "y0": y, "y1": y + high, "layer": "below",
        "line": {"color": "@edge", "width": 1}, **fill,
    }  # fmt: skip


def _text(x: float, y: float, text: str, colour: str) -> dict[str, Any]:
    return {"x": x, "y": y, "text": text, "showarrow": False, "font": {"color": colour, "size": 12}}


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
    predicted = [form.predicted.bubble for form in found.forms]
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
