"""The figures of lab 2, in the report's own form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rueda.labs.lab_2 import iteration, parallelism
from rueda.labs.lab_2.iteration import AVERAGE, Iteration
from rueda.labs.lab_2.measurements import Measurements
from rueda.labs.lab_2.parallelism import PipelineRun
from rueda.labs.lab_2.sharing import Shares, describe
from rueda.labs.showing import Drawn, Text
from rueda.measure.together import gradient_bytes
from rueda.measure.trace import StageSpan
from rueda.report.figures.parts import curve, log_axis, upright
from rueda.report.model import Table
from rueda.report.plot import Plot
from rueda.report.profiles import exchange_plot
from rueda.terminal.numbers import amount, count, milliseconds

_WAY_COLOURS = {"data": "@blue", "pipeline": "@orange", "tensor": "@green"}
_WORKER_COLOURS = ("@blue", "@orange", "@green", "@purple")
ORDER = [*list(iteration.STEPS)[:12], AVERAGE, *list(iteration.STEPS)[12:]]
"""the steps of an iteration in their order, with the average of several workers"""


def step_label(step: str) -> str:
    """Return a step with its number; the average has none, since one worker does not have it.

    >>> step_label("read"), step_label("average the gradients"), step_label("return control")
    ('1 read', '+ average the gradients', '15 return control')
    """
    return f"+ {step}" if step == AVERAGE else f"{list(iteration.STEPS).index(step) + 1} {step}"


# What travels.


def traffic_plot(found: Measurements, batch: int, width: int) -> list[Drawn]:
    """Draw the bytes that one worker sends in a step, against the batch, in the three ways."""
    batches = sorted({one.batch for one in found.traffic})
    traces: list[dict[str, Any]] = []
    for way, hue in _WAY_COLOURS.items():
        points = [found.bytes_of(way, each, width) for each in batches]
        sent = [one.tensor_bytes if one.sent_bytes is None else one.sent_bytes for one in points]
        traces.append(
            curve(
                batches, sent, hue, mode="lines+markers", name=f"{way}: {parallelism.WAYS[way]}",
                marker={"size": [13 if each == batch else 7 for each in batches], "color": hue},
                hovertemplate="batch %{x}: %{y:,.0f} bytes",
            )
        )  # fmt: skip
    every = [one.sent_bytes or one.tensor_bytes for one in found.traffic]
    ticks = [1 << power for power in range(12, 22, 2)]
    bytes_axis: dict[str, Any] = {
        "title": "bytes sent by a worker", "type": "log", "tickvals": ticks, "ticktext": list(map(amount, ticks)),
        "range": _log_range(min(every) / 1.4, max(every) * 1.4),
    }  # fmt: skip
    layout = {
        "showlegend": True, "legend": _LEGEND, "xaxis": log_axis("batch of both workers together", batches),
        "yaxis": bytes_axis, "shapes": [upright(batch, "@muted", 1.2)],
    }  # fmt: skip
    rows = []
    for way in _WAY_COLOURS:
        one = found.bytes_of(way, batch, width)
        kernel = "not counted here" if one.sent_bytes is None else count(round(one.sent_bytes))
        rows.append([way, parallelism.WAYS[way], (one.tensor_bytes, count(one.tensor_bytes)), (one.sent_bytes, kernel)])
    table = Table(
        title=f"One step at batch {batch}, layers of {width} neurons",
        heads=["way", "what travels", "in tensors", "sent"],
        rows=rows,  # type: ignore[arg-type]
        note="Bytes of each worker: of its tensors, and as the operating system counted them. All three ways gave the "
        "gradients of the undivided network "
        f"(largest relative difference {max(one.difference for one in found.traffic):.0e}).",
    )
    return [Plot(name="traffic", title="What a worker sends in one step", traces=traces, layout=layout), table]


def _log_range(low: float, high: float) -> list[float]:
    return [math.log10(low), math.log10(high)]


_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}


def exchange(found: Measurements) -> list[Drawn]:
    """Draw how long an all-reduce takes, and say it of the gradients of the network of the fifteen steps."""
    link, size = found.communication, gradient_bytes(iteration.network())
    words = (
        f"Among {link.workers} workers of this machine, through {link.backend}: a latency of "
        f"{milliseconds(link.latency)}, and {amount(link.bandwidth)} of gradients in a second. The gradients of the "
        f"network above, {amount(size)}, take about {milliseconds(link.seconds(size))}."
    )
    return [replace(exchange_plot([link], size), half=False), Text(words)]


# The pipeline.


def pipeline_plot(found: Measurements, micro_batches: int) -> list[Drawn]:
    """Draw when the two workers of a pipeline compute, and when they wait."""
    run = found.pipeline(micro_batches)
    traces = []
    for kind, hue in (("forward", "@sky"), ("backward", "@blue")):
        passes = [(rank, span) for rank, spans in enumerate(run.spans) for span in spans if kind in span.stage]
        traces.append(_bars(kind, hue, passes))
    longest = max(1e3 * each.seconds for each in found.pipelines)
    layout = {
        "barmode": "overlay", "showlegend": True, "legend": _LEGEND,
        "xaxis": {"title": "milliseconds", "range": [0, 1.03 * longest]}, "yaxis": _rows(_WORKERS),
    }  # fmt: skip
    plot = Plot(name="pipeline", title="Two stages of a pipeline", traces=traces, layout=layout, height=260)
    return [plot, Text(_pipeline_words(run))]


_WORKERS = ["worker 0: layer 1", "worker 1: layer 2"]


def _pipeline_words(run: PipelineRun) -> str:
    parts = "the whole batch at once" if run.micro_batches == 1 else f"{run.micro_batches} micro-batches"
    return (
        f"With {parts} the step took **{milliseconds(run.seconds)}**, and the workers were idle for "
        f"**{run.idle:.0%}** of it. If both stages took equally long and sending took no time, it would be "
        f"{parallelism.bubble(run.micro_batches):.0%}."
    )


def _bars(name: str, hue: str, spans: Sequence[tuple[float, StageSpan]], **more: Any) -> dict[str, Any]:
    """Return bars from the begin to the end of spans, each in its row."""
    return {
        "type": "bar", "orientation": "h", "name": name, "y": [row for row, _ in spans],
        "base": [1e3 * span.begin for _, span in spans], "x": [1e3 * span.seconds for _, span in spans],
        "customdata": [f"{span.stage}: {milliseconds(span.seconds)}" for _, span in spans],
        "marker": {"color": hue, "line": {"color": "@card", "width": 1}}, "width": 0.6,
        "hovertemplate": "%{customdata}<extra></extra>", **more,
    }  # fmt: skip


def _rows(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return a vertical axis with a name for each row, the first on top."""
    return {
        "title": "", "tickvals": list(range(len(names))), "ticktext": list(names), "range": [len(names) - 0.4, -0.6],
        "showgrid": False, "zeroline": False, **more,
    }  # fmt: skip


# An iteration.


def timeline(found: Measurements, workers: int, step: int) -> list[Drawn]:
    """Draw the steps of a measured iteration up to one of them, and say what happens in it.

    Args:
        found: what was measured.
        workers: 1 or 2.
        step: the number of the step, from 1; the average is the 13th.
    """
    one, chosen = found.alone if workers == 1 else found.together, ORDER[step - 1]
    traces = []
    for rank, spans in enumerate(one.spans):
        rows = [(ORDER.index(span.stage) + (0.0 if workers == 1 else 0.4 * rank - 0.2), span) for span in spans]
        hue = _WORKER_COLOURS[rank]
        opacity = [1.0 if ORDER.index(span.stage) < step else 0.15 for span in spans]
        bars = _bars(f"worker {rank}", hue, rows, width=0.8 / workers)
        # A step of microseconds is thinner than a line: its edge keeps it visible.
        bars["marker"] = {"color": hue, "opacity": opacity, "line": {"color": hue, "width": 1.5}}
        traces.append(bars)
    longest = 1e3 * max(found.alone.seconds, found.together.seconds)
    names = [step_label(each) for each in ORDER]
    layout = {
        "barmode": "overlay", "showlegend": workers > 1, "legend": _LEGEND,
        "xaxis": {"title": "milliseconds since the iteration began", "range": [0, 1.03 * longest]},
        "yaxis": _rows(names), "shapes": [_band(step - 1)],
    }  # fmt: skip
    narrow = {"yaxis.ticktext": [name.split()[0] for name in names]}
    title = "One iteration of one worker" if workers == 1 else "The same iteration on two workers"
    plot = Plot(name="timeline", title=title, traces=traces, layout=layout, height=470, narrow=narrow)
    return [Text(_step_words(one, chosen)), plot, Text(_iteration_words(found, workers))]


def _band(row: int) -> dict[str, Any]:
    return {
        "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": row - 0.5, "y1": row + 0.5, "layer": "below",
        "fillcolor": "@ink", "opacity": 0.08, "line": {"width": 0},
    }  # fmt: skip


def _step_words(one: Iteration, step: str) -> str:
    times = [span.seconds for spans in one.spans for span in spans if span.stage == step]
    if not times:
        return f"**{step_label(step)}.** {iteration.explanation(step)} One worker has nothing to average."
    total = sum(span.seconds for spans in one.spans for span in spans)
    return (
        f"**{step_label(step)}.** {iteration.explanation(step)} It took "
        f"{' and '.join(milliseconds(time) for time in times)}: {sum(times) / total:.0%} of the iteration."
    )


def _iteration_words(found: Measurements, workers: int) -> str:
    alone, together = found.alone, found.together
    if workers == 1:
        return (
            f"{alone.batch} images in {milliseconds(alone.seconds)}: {alone.images_per_second:,.0f} images a second. "
            f"This is the shortest of {alone.repeats} iterations."
        )
    factor = together.images_per_second / alone.images_per_second
    return (
        f"2 × {together.batch} images in {milliseconds(together.seconds)}: {together.images_per_second:,.0f} images a "
        f"second, **{factor:.2f} times** as many as one worker; the efficiency is {factor / 2:.0%}. This is the "
        f"shortest of {together.repeats} iterations; programs that share the cores slow two workers more than one."
    )


# The data.


def shares_plot(shares: Shares, num_examples: int) -> list[Drawn]:
    """Draw which worker reads which example."""
    traces = []
    for rank, share in enumerate(shares):
        times = [share.count(example) for example in share]
        hue = _WORKER_COLOURS[rank]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": f"worker {rank}", "x": share, "y": [rank] * len(share),
                "marker": {"symbol": "square", "size": [11 if once == 1 else 17 for once in times], "color": hue},
                "customdata": list(range(len(share))),
                "hovertemplate": f"worker {rank} reads example %{{x}} as its number %{{customdata}}<extra></extra>",
            }
        )  # fmt: skip
    rows = _rows([f"worker {rank}" for rank in range(len(shares))], showgrid=True)
    layout = {"xaxis": {"title": "example", "range": [-0.8, num_examples - 0.2]}, "yaxis": rows}
    narrow = {"yaxis.ticktext": [str(rank) for rank in range(len(shares))]}
    plot = Plot(
        name="shares", title="Who reads which example", traces=traces, layout=layout, height=90 + 50 * len(shares),
        narrow=narrow, note="A larger square: the same worker reads the example more than once.",
    )  # fmt: skip
    return [plot, Text(describe(shares, num_examples))]
