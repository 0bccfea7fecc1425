"""A profile on the page: throughput and the stages of a step against the batch, the all-reduce, the noise scale."""

from __future__ import annotations

import math
from pathlib import Path

from rueda.records.profile import NoiseScale, Profile
from rueda.report.figures.parts import colour, log_axis
from rueda.report.model import Section, Table
from rueda.report.plot import Plot
from rueda.terminal.numbers import amount, count, digits, milliseconds

_STAGES = {"data": "@orange", "forward": "@sky", "backward": "@blue", "optimizer": "@green"}


def read(place: Path) -> Section:
    """Read a profile: the file, or ``profile.json`` of a folder."""
    profile = Profile.load(place)
    steps = sorted(profile.steps, key=lambda step: step.batch)
    section = Section(title=f"Profile of {profile.task}", task=profile.task)
    best = max(steps, key=lambda step: step.images_per_second)
    section.told.append(
        f"One worker on {profile.device} reaches {best.images_per_second:,.0f} images a second at a local batch of "
        f"{count(best.batch)}; an exchange of its gradients carries {amount(profile.gradient_bytes)}."
    )
    section.told += [_noise_words(profile.noise[-1])] if profile.noise else []
    section.tables.append(
        Table(
            title="A training step, stage by stage",
            heads=["local batch", "images/s", "step", *_STAGES, "peak memory"],
            rows=[
                [
                    (step.batch, count(step.batch)),
                    (step.images_per_second, f"{step.images_per_second:,.0f}"),
                    (step.seconds, milliseconds(step.seconds, step.spread)),
                    *((getattr(step, name), milliseconds(getattr(step, name))) for name in _STAGES),
                    (step.peak_memory_bytes, "–" if step.peak_memory_bytes is None else amount(step.peak_memory_bytes)),
                ]
                for step in steps
            ],
            note="Medians; ± is half the distance between the quartiles.",
        )
    )
    section.plots += [_throughput(profile), _stages(profile)]
    section.plots += [_exchange(profile)] if profile.communication else []
    section.plots += [_noise(profile.noise)] if profile.noise else []
    section.environments.append({**profile.environment, "command": profile.command})
    return section


def _throughput(profile: Profile) -> Plot:
    steps = sorted(profile.steps, key=lambda step: step.batch)
    batches = [step.batch for step in steps]
    speeds = [step.images_per_second for step in steps]
    trace = {
        "type": "scatter", "mode": "lines+markers", "x": batches, "y": speeds, "line": {"color": "@blue", "width": 2.5},
        "hovertemplate": "batch %{x:,}: %{y:,.0f} images/s", "showlegend": False,
        "error_y": {
            "type": "data", "color": "@blue", "thickness": 1.2,
            "array": [step.images_per_second * step.spread / step.seconds for step in steps],
        },
    }  # fmt: skip
    layout = {"xaxis": log_axis("local batch", batches), "yaxis": {"title": "images per second", "rangemode": "tozero"}}
    return Plot(name="profile-throughput", title="Throughput of one worker", traces=[trace], layout=layout, half=True)


def _stages(profile: Profile) -> Plot:
    steps = sorted(profile.steps, key=lambda step: step.batch)
    names = [count(step.batch) for step in steps]
    traces = []
    for stage, hue in _STAGES.items():
        times = [getattr(step, stage) for step in steps]
        whole = [sum(getattr(step, name) for name in _STAGES) or 1.0 for step in steps]
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


def _exchange(profile: Profile) -> Plot:
    traces = []
    for index, link in enumerate(profile.communication):
        sizes = [point.bytes for point in link.points]
        name = f"{link.workers} workers, {link.backend}"
        low, high = min(sizes, default=4), max(sizes, default=2**26)
        grid = [low * (high / low) ** (index / 60) for index in range(61)]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "x": sizes,
                "y": [1e3 * point.seconds for point in link.points], "marker": {"color": colour(index), "size": 8},
                "hovertemplate": "%{x:,} bytes: %{y:.3g} ms",
            }
        )  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": grid, "y": [1e3 * link.seconds(size) for size in grid],
                "line": {"color": colour(index), "width": 1.5}, "hoverinfo": "skip",
                "name": f"{milliseconds(link.latency)} + bytes / {digits(link.bandwidth / 1e9, 2)} GB/s",
            }
        )  # fmt: skip
    size = profile.gradient_bytes
    layout = {
        "showlegend": True, "xaxis": {"title": "bytes", "type": "log", "dtick": 1},
        "yaxis": {"title": "milliseconds", "type": "log", "dtick": 1},
        "shapes": [
            {"type": "line", "x0": size, "x1": size, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"color": "@muted", "dash": "dash", "width": 1.2}}
        ],
    }  # fmt: skip
    note = f"Dashed: the gradients of this model, {amount(size)}."
    return Plot(name="profile-exchange", title="An all-reduce", traces=traces, layout=layout, note=note, half=True)


def _noise(measured: tuple[NoiseScale, ...]) -> Plot:
    whole = sorted((one for one in measured if one.group is None), key=lambda one: one.step)
    values = [one.value for one in whole]
    above = [one.high - one.value if math.isfinite(one.high) else 0.0 for one in whole]
    trace = {
        "type": "scatter", "mode": "lines+markers", "x": [one.step for one in whole], "y": values,
        "line": {"color": "@blue"}, "showlegend": False, "hovertemplate": "after %{x:,} updates: %{y:,.0f} examples",
        "error_y": {"type": "data", "symmetric": False, "array": above, "color": "@blue",
                    "arrayminus": [max(0.0, one.value - one.low) for one in whole]},
    }  # fmt: skip
    layout = {"xaxis": "updates", "yaxis": {"title": "examples", "type": "log"}}
    title, note = "The gradient noise scale", "It grows in training: what is measured early is a lower bound."
    return Plot(name="profile-noise", title=title, traces=[trace], layout=layout, note=note, half=True)


def _noise_words(noise: NoiseScale) -> str:
    if not math.isfinite(noise.value):
        return "The gradient noise scale could not be told from infinity in so few steps."
    high = f"{noise.high:,.0f}" if math.isfinite(noise.high) else "infinity"
    return (
        f"The gradient noise scale is about {noise.value:,.0f} examples ({noise.low:,.0f} to {high}) "
        f"after {noise.step:,} updates."
    )
