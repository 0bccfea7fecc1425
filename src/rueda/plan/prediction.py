"""The step of N workers: compute, exchange, what of it hides, and who is late.

::

    compute    measured, at this local batch, / device speed, x contention among the workers of a node
    sync       all-reduce of the gradients in buckets            (rueda.plan.collectives)
    exposed    what of sync does not hide behind the backward pass, and what hiding costs
    step       (compute + exposed) x the slowest of N            (rueda.plan.stragglers)

**Overlap.** On the profiled machine, where it was measured, as in Pollux (Qiao et al. 2021):
step = (compute^g + sync^g)^(1/g), with g = 1 where nothing hides; where real steps of as many workers were measured,
compute, sync and g are theirs. Elsewhere by the buckets themselves: n buckets become
ready evenly during the backward pass, each takes its turn on the link, so that

    exposed = max(sync / n, sync - backward (n - 1) / n)

of which the last bucket can never hide. What hides is not free: the exchange takes memory bandwidth and processors
from the computation, which runs 18.9 % slower meanwhile (Lee et al. 2025, 2507.03114: mean over models on A100, H100,
MI210 and MI250).

Efficiency is images/s a worker against those of one worker alone with the same local batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rueda.errors import ProfileError
from rueda.plan.cluster import Cluster
from rueda.plan.collectives import AllReduce, Shared, all_reduce, share
from rueda.plan.compute import compute_time
from rueda.plan.stragglers import slowdown
from rueda.records.profile import Profile, overlapped

INTERFERENCE = 0.189
"""how much slower a device computes while it exchanges"""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What one number of workers at one local batch will do."""

    workers: int
    nodes: int
    local_batch: int
    """examples a worker takes through the network at once"""
    accumulate: int
    global_batch: int
    """workers x local_batch x accumulate"""
    compute_seconds: float
    """one worker's step with its neighbours computing, too"""
    sync_seconds: float
    """all exchanges of a step, hidden or not"""
    exposed_seconds: float
    """by how much they lengthen the step"""
    straggler_seconds: float
    """waiting for the slowest worker"""
    step_seconds: float
    """compute + exposed + straggler"""
    images_per_second: float
    """global_batch / step_seconds"""
    one_worker_images_per_second: float
    """of one worker alone at this local batch"""
    efficiency: float
    """images_per_second / (workers x one_worker_images_per_second)"""
    algorithm: str
    """of the all-reduce"""
    warnings: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """Images a second against one worker.

        Less than 1: more workers are slower.
        """
        return self.efficiency * self.workers


def predict(
    profile: Profile,
    cluster: Cluster,
    *,
    workers: int,
    local_batch: int,
    accumulate: int = 1,
    shared: Sequence[Shared] = (),
) -> Prediction:
    """Predict the step of some workers on a cluster.

    Args:
        profile: the measured task; a cluster with a profile of its own device uses that one.
        cluster: see :func:`rueda.plan.load_cluster` and :func:`rueda.plan.this_machine`.
        workers: how many.
        local_batch: examples that each takes through the network at once.
        accumulate: such batches before an exchange and an update.
        shared: what each worker gives to all others within a step, beside the gradients: activations, where some
            layers are split between the workers. Nothing hides it.

    Raises:
        ProfileError: no workers, a batch that does not fit, or a cluster without a link that is needed.
    """
    if workers < 1:
        raise ProfileError("workers", expected="1 or more", got=workers, do="correct it")
    profile = cluster.profile or profile
    alone = compute_time(profile, local_batch, accumulate)
    speed = cluster.speed or 1.0
    together = next((one for one in profile.together if one.workers == workers), None) if cluster.is_profiled else None
    if workers == 1:
        compute, sync, exposed, late = alone.seconds / speed, AllReduce(0.0, "none"), 0.0, 0.0
    elif together is not None and together.compute:
        # Real steps of as many workers were measured here: nothing is left to guess but the batch.
        compute = compute_time(profile, local_batch, accumulate, steps=together.compute).seconds
        sync = AllReduce(together.exchange, "as measured in real steps")
        exposed, late = together.joined_seconds(compute) - compute, 0.0
    else:
        crowd = crowding(cluster, workers)
        compute, backward = (seconds / speed * crowd for seconds in (alone.seconds, alone.backward))
        sync = exchange(profile.gradient_bytes, profile.buckets, workers, cluster)
        if cluster.is_profiled and profile.overlap is not None:
            exposed = overlapped(compute, sync.seconds, profile.overlap) - compute
        else:
            exposed = _buckets(backward, sync.seconds, profile.buckets)
        exposed += cluster.cycle / 2  # the last gradient waits for the next look, half a cycle on average
        late = compute * (slowdown(workers, alone.deviation if cluster.is_profiled else cluster.jitter) - 1)
    exposed += sum(share(what, workers, cluster) for what in shared) if workers > 1 else 0.0
    step = compute + exposed + late
    images, one = workers * local_batch * accumulate / step, local_batch * accumulate / (alone.seconds / speed)
    return Prediction(
        workers=workers, nodes=cluster.nodes(workers), local_batch=local_batch, accumulate=accumulate,
        global_batch=workers * local_batch * accumulate, compute_seconds=compute, sync_seconds=sync.seconds,
        exposed_seconds=exposed, straggler_seconds=late, step_seconds=step, images_per_second=images,
        one_worker_images_per_second=one, efficiency=images / (workers * one), algorithm=sync.algorithm,
        warnings=alone.warnings,
    )  # fmt: skip


def exchange(num_bytes: float, buckets: int, workers: int, cluster: Cluster) -> AllReduce:
    """Give the time of all buckets of a step, one after the other."""
    one = all_reduce(num_bytes / buckets, workers, cluster)
    return AllReduce(buckets * one.seconds, one.algorithm)


def crowding(cluster: Cluster, workers: int) -> float:
    """Say how much slower a worker computes because others of its node do, too.

    The measured contention is that of a full node; fewer workers share it evenly. More workers than devices, on a
    machine that cannot grow, take turns.

    >>> machine = Cluster(name="m", devices_per_node=2, max_nodes=1, contention=1.3)
    >>> [crowding(machine, workers) for workers in (1, 2, 4)]
    [1.0, 1.3, 2.6]
    """
    there = -(-workers // cluster.nodes(workers))
    full = cluster.devices_per_node
    if there > full:
        return cluster.contention * there / full
    return 1.0 if full == 1 else 1 + (cluster.contention - 1) * (there - 1) / (full - 1)


def _buckets(backward: float, sync: float, buckets: int) -> float:
    exposed = max(sync / buckets, sync - backward * (buckets - 1) / buckets)
    return exposed + INTERFERENCE * (sync - exposed)
