"""Predict the time of a training step of N workers: compute, all-reduce, overlap of the two, stragglers.

::

    compute    measured at this local batch, / device speed, or the roofline's; x contention among the workers of a node
    sync       the all-reduce of the gradients, in buckets        (rueda.plan.collectives), compressed if the measured
               recipe says so (rueda.train.gradient_compression); the time of compressing itself is not predicted
    exposed    by how much sync lengthens the step: what the backward pass does not hide, and what hiding costs
    step       compute + exposed + waiting for the slowest worker (rueda.plan.stragglers)

**Overlap.** On the profiled machine, where overlap was measured, the model is that of Pollux (Qiao et al. 2021):
step = (compute^g + sync^g)^(1/g), with g = 1 if nothing is hidden. If steps of this number of workers were measured,
their own compute, sync and g are used. On any other cluster the model is that of the buckets: n buckets become ready at
equal intervals during the backward pass and are sent one after the other, so that

    exposed = max(sync / n, sync - backward (n - 1) / n)

The last bucket can never be hidden. Hiding is not free either: the all-reduce takes memory bandwidth and processors
from the computation, which runs 18.9 % slower meanwhile (Lee et al. 2025, 2507.03114: mean over models on A100, H100,
MI210 and MI250).

Scaling efficiency is the throughput per worker, divided by that of one worker alone at the same local batch.
"""

from __future__ import annotations

from typing import Any, Literal

from rueda.errors import ProfileError
from rueda.plan.cluster import Cluster
from rueda.plan.collectives import all_reduce
from rueda.plan.compute import compute_time
from rueda.plan.roofline import is_same_device, roofline_of
from rueda.plan.stragglers import slowdown
from rueda.records.plan import Prediction
from rueda.records.profile import Profile, overlapped

INTERFERENCE = 0.189
"""how much slower a device computes during an all-reduce"""


def scaling_efficiency(images_per_second: float, workers: int, alone: float) -> float:
    """Return the throughput per worker, divided by that of one worker alone.

    >>> round(scaling_efficiency(489_929, 8, 71_149), 2)  # a small CNN on 8 V100 GPUs
    0.86
    """
    return images_per_second / (workers * alone)


def predict(
    profile: Profile, cluster: Cluster, *, workers: int, local_batch: int, accumulate: int = 1
) -> Prediction:  # fmt: skip
    """Predict a training step on a cluster.

    Args:
        profile: the measured task; a cluster that has a profile of its own device uses that one instead.
        cluster: see :func:`rueda.plan.load_cluster` and :func:`rueda.plan.this_machine`.
        workers: the number of workers.
        local_batch: examples in one forward pass of one worker.
        accumulate: gradient accumulation: local batches per all-reduce and update.

    Raises:
        ProfileError: no workers, a batch that does not fit into memory, or a cluster without a link that is needed.
    """
    if workers < 1:
        raise ProfileError("workers", expected="1 or more", got=workers, do="correct it")
    rests_on = basis(profile, cluster)
    profile = cluster.profile or profile
    carried: dict[str, Any] = {}
    if rests_on in ("speed", "roofline"):
        carried = {"speed": cluster.speed, "roofline": roofline_of(profile, cluster.device, cluster.peaks)}
    alone = compute_time(profile, local_batch, accumulate, **carried)
    together = next((one for one in profile.together if one.workers == workers), None) if cluster.is_profiled else None
    if workers == 1:
        compute, sync, exposed, late = alone.seconds, 0.0, 0.0, 0.0
    elif together is not None and together.compute:
        # Steps of this number of workers were measured here: only the batch is interpolated.
        compute = compute_time(profile, local_batch, accumulate, steps=together.compute).seconds
        sync, exposed, late = together.exchange, together.joined_seconds(compute) - compute, 0.0
    else:
        slower = contention(cluster, workers)
        compute, backward = (seconds * slower for seconds in (alone.seconds, alone.backward))
        sync = profile.buckets * all_reduce(profile.all_reduce_bytes / profile.buckets, workers, cluster)
        if cluster.is_profiled and profile.overlap is not None:
            exposed = overlapped(compute, sync, profile.overlap) - compute
        else:
            exposed = max(sync / profile.buckets, sync - backward * (profile.buckets - 1) / profile.buckets)
            exposed += INTERFERENCE * (sync - exposed)
        exposed += cluster.cycle / 2  # on average the last gradient waits for half a cycle
        late = compute * (slowdown(workers, alone.deviation if cluster.is_profiled else cluster.jitter) - 1)
    step = compute + exposed + late
    images, one = workers * local_batch * accumulate / step, local_batch * accumulate / alone.seconds
    return Prediction(
        workers=workers, nodes=cluster.nodes(workers), local_batch=local_batch,
        global_batch=workers * local_batch * accumulate, compute_seconds=compute, sync_seconds=sync,
        exposed_seconds=exposed, straggler_seconds=late, step_seconds=step, images_per_second=images,
        efficiency=scaling_efficiency(images, workers, one), warnings=alone.warnings,
    )  # fmt: skip


def basis(profile: Profile, cluster: Cluster) -> Literal["measured", "speed", "roofline", "assumed"]:
    """Return what the compute times on a cluster rest on.

    ``measured``: a profile of its device, or of one that is said to be equally fast (a speed of 1). ``speed``: the
    times of another device, divided by the relative speed that was given. ``roofline``: counted work and the peaks of
    the device. ``assumed``: none of these is known, so the profiled device is taken to be equally fast.
    """
    own = cluster.profile or profile
    if cluster.is_profiled or cluster.speed == 1 or (cluster.profile is not None and cluster.speed is None):
        return "measured"
    if cluster.speed is not None:
        return "speed"
    if is_same_device(own.device, cluster.device):
        return "measured"
    return "assumed" if own.work is None or cluster.peaks is None else "roofline"


def contention(cluster: Cluster, workers: int) -> float:
    """Return how many times longer a worker computes because other workers of its node compute at the same time.

    The measured contention holds for a full node; with fewer workers it is interpolated. More workers than devices, on
    a machine that cannot grow, share the devices in turns.

    >>> machine = Cluster(name="m", devices_per_node=2, max_nodes=1, contention=1.3)
    >>> [contention(machine, workers) for workers in (1, 2, 4)]
    [1.0, 1.3, 2.6]
    """
    local = -(-workers // cluster.nodes(workers))
    full = cluster.devices_per_node
    if local > full:
        return cluster.contention * local / full
    return 1.0 if full == 1 else 1 + (cluster.contention - 1) * (local - 1) / (full - 1)
