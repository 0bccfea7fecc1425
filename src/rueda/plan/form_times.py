"""The time of a step in each parallel form on a cluster: compute, waiting, and what the links take.

With T(b) the compute time of one worker at b examples, from the profile and the cluster as in
:mod:`rueda.plan.prediction`:

=========  ===========================================================================================================
data       :func:`rueda.plan.prediction.predict`, as everywhere in a plan
sharded    T(B / s) + exposed: three transfers (two all-gathers, a reduce-scatter) of half an all-reduce each, hidden
           behind the computation of the other layers, but never the first and the last one
pipeline   (m + p - 1) slots, each max(the slowest stage's share of T(B / m), its sends), and the sends of the first
           and last micro-batch through all stages
tensor     T(B) with the split layers' share divided by t, but never less than the launches of the host, of which each
           worker has as many as one alone; and all all-reduces: the next operation waits for them
=========  ===========================================================================================================

Tensor slices are neighbours (the links inside a node), then pipeline stages, then shards and replicas. A group whose
ranks lie a *stride* of k apart has 1 / k of the devices of each node, and shares the links between nodes with k other
groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rueda.plan.cluster import Cluster, Link
from rueda.plan.collectives import all_reduce
from rueda.plan.compute import launch_seconds
from rueda.plan.parallel_forms import Exchange, Schedule, cut_bytes, exchanges_of
from rueda.plan.prediction import INTERFERENCE, basis, contention, predict
from rueda.records.model_layers import LayerWork
from rueda.records.profile import Profile
from rueda.records.recipe.parallel_form import Mesh


def group_cluster(cluster: Cluster, stride: int) -> Cluster:
    """Return the cluster as a group sees it whose ranks lie ``stride`` apart.

    >>> box = Cluster(name="box", devices_per_node=8, inside=Link(latency=0, bandwidth=8e9),
    ...     between=Link(latency=0, bandwidth=4e9))
    >>> apart = group_cluster(box, 4)
    >>> apart.devices_per_node, apart.between.bandwidth
    (2, 1000000000.0)
    """
    if stride == 1:
        return cluster
    sharing, between = min(stride, cluster.devices_per_node), cluster.between
    if between is not None:
        between = replace(between, bandwidth=between.bandwidth / sharing)
    # A measured line is that of neighbours, all at once: here it would promise too much.
    measured = () if cluster.devices_per_node < stride else cluster.measured
    return replace(
        cluster, devices_per_node=max(1, cluster.devices_per_node // stride), between=between, measured=measured
    )


def exchange_seconds(exchange: Exchange, cluster: Cluster, stride: int) -> float:
    """Return the seconds of one kind of communication: an all-gather or a reduce-scatter is half an all-reduce.

    >>> box = Cluster(name="box", devices_per_node=4, max_nodes=1, inside=Link(latency=0, bandwidth=1e9))
    >>> exchange_seconds(Exchange("parameters", "all-gather", 1e9, 4, 1), box, 1)
    0.75
    """
    calls = max(1, exchange.calls)
    whole = calls * all_reduce(exchange.num_bytes / calls, exchange.size, group_cluster(cluster, stride))
    return whole if exchange.collective == "all-reduce" else whole / 2


def send_seconds(num_bytes: float, cluster: Cluster, stride: int, workers: int) -> float:
    """Return the seconds of one message between neighbouring stages: by the slowest link that any of them uses."""
    seen = group_cluster(cluster, stride)
    link: Link = seen.link("inside" if cluster.nodes(workers) == 1 else "between")
    return link.latency + num_bytes / link.usable


def compute_seconds(profile: Profile, cluster: Cluster, examples: float, workers: int) -> float:
    """Return the compute time of one worker at some examples, in several passes if they do not fit at once."""
    own = cluster.profile or profile
    most = own.largest_batch or examples
    batch = max(1, round(min(examples, most)))
    alone = predict(profile, cluster, workers=1, local_batch=batch).compute_seconds
    return alone * examples / batch * contention(cluster, workers)


def step_times(
    profile: Profile, cluster: Cluster, stages: Sequence[Sequence[LayerWork]], mesh: Mesh, schedule: Schedule,
    batch: int,
) -> tuple[float, float, float]:  # fmt: skip
    """Return the seconds of a step, of its computation and of all communication, of the slowest stage.

    Args:
        profile: the measured task.
        cluster: where it will run.
        stages: the layers of each stage.
        mesh: the form.
        schedule: that of the pipeline.
        batch: the global batch.
    """
    examples = batch / mesh.replicas
    if mesh.data == mesh.workers and batch % mesh.workers == 0:
        own = cluster.profile or profile
        if own.largest_batch is None or batch // mesh.workers <= own.largest_batch:
            found = predict(profile, cluster, workers=mesh.workers, local_batch=batch // mesh.workers)
            return found.step_seconds, found.compute_seconds, found.sync_seconds
    micro = examples / (schedule.micro_batches if mesh.pipeline > 1 else 1)
    whole = compute_seconds(profile, cluster, micro, mesh.workers)
    floor = _launch_floor(profile, cluster)
    slot = max(max(whole * _share(one, stages, mesh.tensor), floor * _share(one, stages, 1)) for one in stages)
    slots = schedule.micro_batches + mesh.pipeline - 1 if mesh.pipeline > 1 else 1
    strides = {"tensor": 1, "pipeline": mesh.tensor, "replicas": mesh.tensor * mesh.pipeline}
    blocking, hideable, calls = 0.0, 0.0, 1
    for stage in stages:
        of_stage = exchanges_of(stage, mesh, examples=examples)
        now = [one for one in of_stage if one.carries == "activations"]
        later = [one for one in of_stage if one.carries != "activations"]
        blocking = max(blocking, sum(exchange_seconds(one, cluster, strides["tensor"]) for one in now))
        seconds = sum(exchange_seconds(one, cluster, strides["replicas"]) for one in later)
        if seconds > hideable:
            hideable, calls = seconds, max(one.calls for one in later)
    busy = slot * (schedule.micro_batches if mesh.pipeline > 1 else 1)
    exposed = 0.0
    if hideable:
        exposed = max(hideable / calls, hideable - busy * (calls - 1) / calls)
        exposed += INTERFERENCE * (hideable - exposed)
    sending = 0.0
    if mesh.pipeline > 1:
        stride = strides["pipeline"]
        sends = [send_seconds(one, cluster, stride, mesh.workers) for one in cut_bytes(stages, micro)]
        sending = 2 * schedule.micro_batches * max(sends)
        # a slot is a forward and a backward pass, and sends one activation and one gradient meanwhile
        slot = max(slot, 2 * max(sends))
        exposed += 2 * sum(sends)
    return slots * slot + blocking + exposed, busy, hideable + blocking + sending


def _launch_floor(profile: Profile, cluster: Cluster) -> float:
    """Return the least time of a step, that of its launches; 0 where the times are measured ones, which contain it."""
    return launch_seconds(cluster.profile or profile) if basis(profile, cluster) in ("speed", "roofline") else 0.0


def _share(stage: Sequence[LayerWork], stages: Sequence[Sequence[LayerWork]], slices: int) -> float:
    """Return the share of a step's flops that a worker of a stage computes; of the layers if no flops are known."""
    total = sum(layer.flops for each in stages for layer in each)
    if total <= 0:
        return len(stage) / sum(map(len, stages))
    own = sum(layer.flops - layer.split_flops * (1 - 1 / slices) for layer in stage)
    return own / total
