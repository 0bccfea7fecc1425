"""The reader of ``profile.json``: throughput, the stages of a step, the all-reduce and the gradient noise scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rueda.records.profile import Communication, NoiseScale, Profile, StepTime
from rueda.report.figures.parts import colour, curve, error_bars, log_axis, round_ticks, upright
from rueda.report.figures.throughput import speed_plot
from rueda.report.model import Cell, Section, Table, field_as
from rueda.report.plot import Plot
from rueda.terminal.numbers import NONE, amount, count, digits, milliseconds, operations

_STAGES = {"data": "@orange", "forward": "@sky", "backward": "@blue", "optimizer": "@green"}


def to_section(profile: Profile) -> Section:
    """Return the section about a profile."""
    steps = sorted(profile.steps, key=lambda step: step.batch)
    section = Section(title=f"Profile of {profile.task}", task=profile.task)
    best = max(steps, key=lambda step: step.images_per_second)
    section.told.append(
        f"One worker on {profile.device} reaches {best.images_per_second:,.0f} {profile.unit} a second at a local "
        f"batch of {count(best.batch)}; an all-reduce of its gradients carries {amount(profile.all_reduce_bytes)}."
    )
    if profile.work is not None:
        section.told.append(
            f"Counted for each of the {profile.unit}: {operations(profile.work.flops)} and "
            f"{amount(profile.work.saved_bytes)} of activations."
        )
    section.told += [_noise_words(profile.noise[-1])] if profile.noise else []
    columns: dict[str, Callable[[StepTime], Cell]] = {
        "local batch": field_as("batch", count),
        f"{profile.unit}/s": field_as("images_per_second", "{:,.0f}".format),
        "step": lambda step: (step.seconds, milliseconds(step.seconds, step.spread)),
        **{name: field_as(name, milliseconds) for name in _STAGES},
        "peak memory": field_as("peak_memory_bytes", lambda size: NONE if size is None else amount(size)),
    }
    note = "Medians; ± is half the distance between the quartiles."
    section.tables.append(Table.of("A training step, stage by stage", steps, columns, note))
    section.plots += [_throughput(steps, profile.unit), _stages(steps)]
    section.plots += [exchange_plot(profile.communication, profile.all_reduce_bytes)] if profile.communication else []
    section.plots += [_noise(profile.noise)] if profile.noise else []
    return section


def _throughput(steps: list[StepTime], unit: str) -> Plot:
    batches, speeds = [step.batch for step in steps], [step.images_per_second for step in steps]
    spreads = [step.images_per_second * step.relative_spread for step in steps]
    return speed_plot("profile-throughput", "Throughput of one worker", batches, speeds, spreads, unit)


def _stages(steps: list[StepTime]) -> Plot:
    names = [count(step.batch) for step in steps]
    whole = [sum(getattr(step, name) for name in _STAGES) or 1.0 for step in steps]
    traces = []
    for stage, hue in _STAGES.items():
        times = [getattr(step, stage) for step in steps]
        shares = [100 * time / total for time, total in zip(times, whole, strict=True)]
        text = [milliseconds(time) for time in times]
        traces.append(
            {
                "type": "bar", "name": stage, "x": names, "y": shares, "text": text, "textposition": "none",
                "marker": {"color": hue}, "hovertemplate": "%{fullData.name}: %{text}, %{y:.0f} %",
            }
        )  # fmt: skip
    layout = {
        "barmode": "stack", "showlegend": True,
        "xaxis": {"title": "local batch", "type": "category"}, "yaxis": {"title": "% of the step", "range": [0, 100]},
    }  # fmt: skip
    return Plot(name="profile-stages", title="Where a step's time goes", traces=traces, layout=layout, half=True)


def exchange_plot(links: Sequence[Communication], size: int) -> Plot:
    """Draw the measured time of all-reduces against their bytes, and the fitted lines.

    Args:
        links: the measurements of some numbers of workers.
        size: the bytes of the model's gradients.
    """
    traces = []
    for index, link in enumerate(links):
        sizes, hue = [point.bytes for point in link.points], colour(index)
        low, high = min(sizes, default=4), max(sizes, default=2**26)
        grid = [low * (high / low) ** (index / 60) for index in range(61)]
        line = f"{milliseconds(link.latency)} + bytes / {digits(link.bandwidth / 1e9, 2)} GB/s"
        traces += [
            {
                "type": "scatter", "mode": "markers", "name": f"{link.workers} workers, {link.backend}", "x": sizes,
                "y": [1e3 * point.seconds for point in link.points], "marker": {"color": hue, "size": 8},
                "hovertemplate": "%{x:,} bytes: %{y:.3g} ms",
            },
            curve(grid, [1e3 * link.seconds(size) for size in grid], hue, width=1.5, name=line, hoverinfo="skip"),
        ]  # fmt: skip
    times = [1e3 * point.seconds for link in links for point in link.points]
    layout = {
        "showlegend": True, "xaxis": {"title": "bytes", "type": "log", "dtick": 1},
        "yaxis": log_axis("milliseconds", round_ticks(min(times, default=0.1) / 2, max(times, default=10.0) * 2)),
        "shapes": [upright(size, "@muted", 1.2)],
    }  # fmt: skip
    note = f"Dashed: the gradients of this model, {amount(size)}."
    return Plot(name="profile-exchange", title="An all-reduce", traces=traces, layout=layout, note=note, half=True)


def _noise(measured: tuple[NoiseScale, ...]) -> Plot:
    whole = sorted((one for one in measured if one.group is None), key=lambda one: one.step)
    above = [one.high - one.value if math.isfinite(one.high) else 0.0 for one in whole]
    below = [max(0.0, one.value - one.low) for one in whole]
    trace = curve(
        [one.step for one in whole], [one.value for one in whole], "@blue", mode="lines+markers", showlegend=False,
        hovertemplate="after %{x:,} updates: %{y:,.0f} examples",
        error_y=error_bars(above, "@blue", symmetric=False, arrayminus=below),
    )  # fmt: skip
    layout = {"xaxis": "updates", "yaxis": {"title": "examples", "type": "log"}}
    title, note = "The gradient noise scale", "It grows during training: an early measurement is a lower bound."
    return Plot(name="profile-noise", title=title, traces=[trace], layout=layout, note=note, half=True)


def _noise_words(noise: NoiseScale) -> str:
    if not math.isfinite(noise.value):
        return "The gradient noise scale is not known: after so few steps its estimate is infinite."
    high = f"{noise.high:,.0f}" if math.isfinite(noise.high) else "infinity"
    return (
        f"The gradient noise scale is about {noise.value:,.0f} examples ({noise.low:,.0f} to {high}) "
        f"after {noise.step:,} updates."
    )
