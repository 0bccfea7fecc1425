"""The parts of a training step on a cluster: computing, the exposed all-reduce, waiting for the slowest."""

from __future__ import annotations

import math

from rueda.labs.lab_4.course_profile import course_profile
from rueda.plan import cluster_names, load_cluster, predict
from rueda.plan.cluster import THIS_MACHINE, Cluster
from rueda.plan.collectives import all_reduce
from rueda.records.plan import Prediction
from rueda.report.figures.parts import colour, curve, log_axis
from rueda.report.model import Table, field_as
from rueda.report.plot import Plot
from rueda.terminal.numbers import count, milliseconds, percent

CLUSTERS = tuple(name for name in cluster_names() if name not in (THIS_MACHINE, "two-rooms"))  # each in one room
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PARTS = (
    ("computing", "compute_seconds", "@blue"),
    ("all-reduce that nothing hides", "exposed_seconds", "@red"),
    ("waiting for the slowest", "straggler_seconds", "@orange"),
)
"""the parts of a step: name, field of the prediction, colour"""


def predictions(cluster: str, local_batch: int) -> list[Prediction]:
    """Predict the step of the course's network for every number of workers that the cluster allows."""
    place, profile = load_cluster(cluster), course_profile()
    return [predict(profile, place, workers=workers, local_batch=local_batch) for workers in possible(place)]


def possible(cluster: Cluster) -> list[int]:
    """Return the numbers of workers for which a cluster has a device each.

    >>> possible(load_cluster("pcie4-4"))
    [1, 2, 4]
    """
    most = math.inf if cluster.max_nodes is None else cluster.max_nodes * cluster.devices_per_node
    return [workers for workers in WORKERS if workers <= most]


def step_figure(cluster: str, local_batch: int) -> list[Plot | Table]:
    """Draw the parts of a step against the number of workers, and the scaling efficiency."""
    found = predictions(cluster, local_batch)
    names = [count(one.workers) for one in found]
    bars = [
        {"type": "bar", "name": name, "x": names, "y": [1e3 * getattr(one, field) for one in found],
         "marker": {"color": hue}, "hovertemplate": f"%{{x}} workers, {name}: %{{y:.3g}} ms"}
        for name, field, hue in PARTS
    ]  # fmt: skip
    plot = Plot(
        name="step-parts", title=f"A training step on {load_cluster(cluster).title or cluster}", traces=bars,
        layout={"barmode": "stack", "xaxis": {"title": "workers", "type": "category", "tickangle": 0},
                "yaxis": {"title": "milliseconds"}, "showlegend": True},
    )  # fmt: skip
    table = Table.of(
        "",
        found[-1:] if len(found) == 1 else [found[0], found[len(found) // 2], found[-1]],
        {
            "workers": field_as("workers", count),
            "images/s": field_as("images_per_second", "{:,.0f}".format),
            "computing": field_as("compute_seconds", milliseconds),
            "all-reduce": field_as("sync_seconds", milliseconds),
            "of it exposed": field_as("exposed_seconds", milliseconds),
            "scaling efficiency": field_as("efficiency", percent),
        },
    )
    return [plot, table]


def all_reduce_figure(megabytes: float) -> Plot:
    """Draw the time of an all-reduce of so many bytes against the number of workers, on every cluster."""
    traces = []
    for number, name in enumerate(CLUSTERS):
        cluster = load_cluster(name)
        counts = [workers for workers in possible(cluster) if workers > 1]
        seconds = [all_reduce(1e6 * megabytes, workers, cluster) for workers in counts]
        traces.append(
            curve(
                counts, [1e3 * value for value in seconds], colour(number), mode="lines+markers", name=name,
                hovertemplate="%{fullData.name}, %{x} workers: %{y:.3g} ms",
            )
        )  # fmt: skip
    return Plot(
        name="all-reduce", title=f"An all-reduce of {megabytes:g} MB", traces=traces, height=440, narrow_height=520,
        layout={"xaxis": log_axis("workers", WORKERS[1:], tickangle=0), "showlegend": True,
                "yaxis": {"title": "milliseconds", "type": "log", "dtick": 1}},
        narrow={"xaxis": log_axis("workers", WORKERS[1::3], tickangle=0)},
    )  # fmt: skip
