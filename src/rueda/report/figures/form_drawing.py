"""The drawing of a parallel form: a column of layers for each worker, filled where it holds them, and what travels.

A layer is filled over its whole height if the worker holds all of it, over a part of its height if it holds some of the
rows of each parameter (``sharded``), and over a part of its width if it holds some of the columns (``tensor``).
"""

from __future__ import annotations

from typing import Any

from rueda.records.parallelism import MeasuredForm, Parallelism, Traffic
from rueda.records.recipe.parallel_form import Mesh, mesh_of
from rueda.report.plot import Plot
from rueda.terminal.numbers import amount

_MOST_LAYERS, _MOST_WORKERS = 8, 4
_COLOURS = ("@blue", "@orange", "@green", "@purple")
"""the colours of the workers"""
_KINDS = {"gradients": "@red-text", "parameters": "@blue-text", "activations": "@green-text", "other": "@ink"}
"""the colours of what travels"""
_APART = 1.7
"""the distance of two columns, which are 1 wide"""


def drawing(found: Parallelism) -> list[Plot]:
    """Draw each form, with the measured bytes beside the predicted."""
    return [_drawn(found, form, number) for number, form in enumerate(found.forms)]


def _drawn(found: Parallelism, form: MeasuredForm, number: int) -> Plot:
    mesh, layers = mesh_of(form.form, found.workers), _shown(list(found.layers))
    workers = min(found.workers, _MOST_WORKERS)
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for worker in range(workers):
        held = set(form.holds[worker]) if worker < len(form.holds) else set(found.layers)
        left = _APART * worker
        notes.append(_text(left + 0.5, len(layers) + 0.3, f"worker {worker}", "@ink"))
        for level, layer in enumerate(layers):
            shapes.append(_box(left, level, 1.0, 0.8, None))
            if layer in held:
                x, y, wide, high = _part(mesh, worker, is_whole=layer in form.whole)
                colour = _COLOURS[worker % len(_COLOURS)]
                shapes.append(_box(left + x, level + 0.8 * y, wide, 0.8 * high, colour))
            if worker == 0:
                notes.append({**_text(-0.1, level + 0.4, layer, "@ink"), "xanchor": "right"})
    if mesh.pipeline > 1:
        notes += _between_stages(form, mesh, layers, workers)
    low = -0.4
    for one in form.traffic:
        predicted = sum(
            each.num_bytes
            for each in form.predicted.traffic
            if (each.carries, each.collective) == (one.carries, one.collective)
        )
        notes += _travels(one, mesh, workers, low)
        words = f"{one.carries}: {one.collective}, {amount(one.num_bytes)} ({amount(predicted)})"
        middle = (_APART * (workers - 1) + 1) / 2
        notes.append(_text(middle, low - 0.42, words, _KINDS[one.carries]))
        low -= 1.05
    right = _APART * (workers - 1) + 1
    # an invisible trace, since a figure needs one
    trace = {
        "x": [0, right], "y": [0, len(layers)], "mode": "markers", "marker": {"opacity": 0, "color": "@grid"},
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    hidden = {"visible": False, "fixedrange": True}
    layout = {
        "xaxis": {**hidden, "range": [-0.85 * workers, right + 0.2]},
        "yaxis": {**hidden, "range": [low, len(layers) + 0.7]},
        "shapes": shapes, "annotations": notes,
    }  # fmt: skip
    note = (
        "Filled: what a worker holds of each layer, the first layer at the bottom. Below: what each worker sends in a "
        "step, measured and in parentheses predicted."
    )
    return Plot(
        name=f"form-{'abcdefghijklmnopqrstuvwxyz'[number % 26]}", title=form.form.capitalize(), traces=[trace],
        layout=layout, half=True, height=max(260, 40 * len(layers) + 42 * len(form.traffic) + 110),
        note=note if number == 0 else "",
    )  # fmt: skip


def _part(mesh: Mesh, worker: int, *, is_whole: bool) -> tuple[float, float, float, float]:
    """Return the part of a layer's box that a worker holds: left, bottom, width and height as fractions."""
    tensor = 1 if is_whole else mesh.tensor
    slice_number, shard = worker % mesh.tensor, worker // mesh.sharers % mesh.sharded
    left = slice_number / tensor if tensor > 1 else 0.0
    return left, shard / mesh.sharded, 1 / tensor, 1 / mesh.sharded


def _between_stages(form: MeasuredForm, mesh: Mesh, layers: list[str], workers: int) -> list[dict[str, Any]]:
    """Return an arrow from the last layer of each stage to the first one of the next."""
    found = []
    for worker in range(workers - mesh.tensor):
        if worker // mesh.tensor % mesh.pipeline == mesh.pipeline - 1:
            continue
        following = worker + mesh.tensor
        own, next_ones = (
            [level for level, name in enumerate(layers) if name in form.holds[rank]] for rank in (worker, following)
        )
        if own and next_ones:
            start, end = (_APART * worker + 1, own[-1] + 0.4), (_APART * following, next_ones[0] + 0.4)
            found.append(_arrow(start, end, _KINDS["activations"]))
    return found


def _travels(traffic: Traffic, mesh: Mesh, workers: int, height: float) -> list[dict[str, Any]]:
    """Return an arrow between neighbours of each group of workers among which something is exchanged."""
    kind = {
        ("parameters", "all-gather"): "sharded",
        ("gradients", "reduce-scatter"): "sharded",
        ("activations", "all-reduce"): "tensor",
        ("gradients", "all-reduce"): "data" if mesh.data > 1 else "pipeline",
    }.get((traffic.carries, traffic.collective))
    if kind is None or getattr(mesh, kind) == 1:
        return []
    stride = {
        "tensor": 1,
        "pipeline": mesh.tensor,
        "sharded": mesh.sharers,
        "data": mesh.sharers * mesh.sharded,
    }[kind]
    found = []
    for worker in range(workers - stride):
        if worker // stride % getattr(mesh, kind) < getattr(mesh, kind) - 1:
            lower = height - 0.1 * (worker % stride)
            ends = [(_APART * rank + 0.5, lower) for rank in (worker, worker + stride)]
            found.append({**_arrow(ends[0], ends[1], _KINDS[traffic.carries]), "arrowside": "end+start"})
    return found


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


def _arrow(start: tuple[float, float], end: tuple[float, float], colour: str) -> dict[str, Any]:
    return {
        "ax": start[0], "ay": start[1], "x": end[0], "y": end[1], "axref": "x", "ayref": "y", "xref": "x", "yref": "y",
        "text": "", "showarrow": True, "arrowhead": 2, "startarrowhead": 2, "arrowwidth": 1.5, "arrowcolor": colour,
    }  # fmt: skip
