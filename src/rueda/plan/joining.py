"""Workers that join as the batch grows: the number of workers that pays in each phase of a plan.

A plan that lets its batch grow (:mod:`rueda.plan.rules`) begins with small batches, of which many workers have a few
examples each: the all-reduce and the launches then take longer than the computation. The same updates can be made by
fewer workers with more examples each, and more of them can join at the milestones. In each phase, from one milestone to
the next, the number of workers is chosen as for a whole plan: the fastest that costs at most twice as much as the
cheapest one, if it is noticeably faster. Workers join and do not leave, and there are at most those of the plan.

Neither the batches nor the rate change, so the training stays the same, but for the examples over which batch norm
computes its statistics, where these are not synchronised: a worker has more of them in the early phases, up to as many
as one worker alone has.

Candidates are 1, 2, 4 ... workers that can divide each batch equally. A worker passes at most one worker's local batch
through the model at a time; larger shares use gradient accumulation.
"""

from __future__ import annotations

from itertools import pairwise

from rueda.errors import ProfileError
from rueda.optim.batch_growth import BatchGrowth, BatchSplit, split_batch
from rueda.plan.advice import cost, fastest_worth_it
from rueda.plan.cluster import Cluster
from rueda.plan.prediction import predict
from rueda.records.plan import Joining, JoiningPhase, PlanRow
from rueda.records.profile import Profile
from rueda.records.recipe.recipe import Recipe


def joining_of(row: PlanRow, profile: Profile, cluster: Cluster, base: Recipe) -> Joining | None:
    """Return the workers of each phase of a row; None if its batch does not grow.

    Args:
        row: the recommended row.
        profile: the measured task.
        cluster: where the training will run.
        base: the recipe of one worker's training, whose local batch is the largest one.
    """
    if row.growth_factor is None:
        return None
    growth = BatchGrowth(row.global_batch, row.growth_factor, row.growth_epochs)
    phases: list[JoiningPhase] = []
    for first, end in pairwise((0, *row.growth_epochs, int(row.epochs))):
        least = phases[-1].workers if phases else 1
        found = []
        for workers in _candidates(least, row.workers):
            phase = _phase(workers, first, end, growth, profile, cluster, base.local_batch)
            found += [] if phase is None else [phase]
        phases.append(fastest_worth_it(found, min(map(cost, found))))
    paid = [phase.money for phase in phases if phase.money is not None]
    return Joining(
        phases=tuple(phases), hours=sum(phase.hours for phase in phases),
        node_hours=sum(phase.nodes * phase.hours for phase in phases),
        worker_hours=sum(phase.workers * phase.hours for phase in phases), money=sum(paid) if paid else None,
    )  # fmt: skip


def _candidates(least: int, most: int) -> list[int]:
    """Return the powers of two from the least to the most workers, and these two.

    >>> _candidates(1, 12), _candidates(6, 12)
    ([1, 2, 4, 8, 12], [6, 8, 12])
    """
    powers = (1 << power for power in range(most.bit_length()))
    return sorted({least, most, *(count for count in powers if least <= count <= most)})


def _phase(
    workers: int, first: int, end: int, growth: BatchGrowth, profile: Profile, cluster: Cluster, largest: int
) -> JoiningPhase | None:
    """Return the epochs from ``first`` to ``end`` with a number of workers; None if they cannot share the batches."""
    at_start, now = (_equal_split(batch, workers, largest) for batch in (growth.base_batch, growth(first)))
    if at_start is None or now is None:
        return None
    try:
        step = predict(
            profile, cluster, workers=workers, local_batch=now.local_batch, accumulate=now.accumulation
        )  # fmt: skip
    except ProfileError:  # the cluster has no link for as many, or the batch does not fit
        return None
    updates = (end - first) * (profile.examples // growth(first))
    hours = updates * step.step_seconds / 3600
    price = cluster.price_per_hour
    return JoiningPhase(
        first_epoch=first, end_epoch=end, global_batch=growth(first), workers=workers, nodes=step.nodes,
        batch=at_start.local_batch, accumulate=at_start.accumulation, updates=updates, hours=hours,
        money=None if price is None else hours * step.nodes * price,
    )  # fmt: skip


def _equal_split(batch: int, workers: int, largest: int) -> BatchSplit | None:
    """Split a global batch among workers; None if they cannot have equal shares.

    >>> _equal_split(512, 4, 64), _equal_split(512, 6, 64)
    (BatchSplit(local_batch=64, accumulation=2), None)
    """
    split = split_batch(batch, workers, largest) if batch >= workers else None
    return split if split is not None and workers * split.local_batch * split.accumulation == batch else None
