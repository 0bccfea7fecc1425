"""Predict the time of an update where workers exchange parameters every H updates (local SGD, DiLoCo).

With data parallelism the gradients are all-reduced at every update, in part behind the backward pass
(:mod:`rueda.plan.prediction`). With ``sync_every`` = H in the recipe (:mod:`rueda.train.parameter_exchange`) a worker
makes H updates of its own, and then F fragments of b / F bytes each are exchanged. With

    x     = all-reduce of b / F bytes                       (:mod:`rueda.plan.collectives`)
    own   = compute + waiting for the slowest worker        as at every update
    h     = min(x, tau own)                                 what ``sync_delay`` = tau updates hide of an exchange

an update takes

    step  = max(own + F (x - h + 0.189 h) / H,  F x / H)

The 0.189 is the slowdown of computation during an all-reduce (:data:`rueda.plan.prediction.INTERFERENCE`). The second
term is a link that is never idle. Each worker sends 2 b (N - 1) / N / H bytes an update. Waiting for the slowest worker
is taken to be as long as at every update: the workers that are slow are so for longer than H updates.

**What the link is worth.** :func:`worth_below` is the bandwidth of the slowest link below which H saves at least 5 % of
the time. Above it the exchanges only cost accuracy, which no plan predicts: rehearse it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rueda.errors import ProfileError
from rueda.plan.cluster import THIS_MACHINE, Cluster
from rueda.plan.collectives import all_reduce
from rueda.plan.prediction import INTERFERENCE, predict
from rueda.records.plan import ExchangePrediction, Plan, Prediction
from rueda.records.profile import Profile
from rueda.terminal.numbers import amount, bits_per_second, digits, milliseconds, percent

INTERVALS = (8, 64, 512)
"""the intervals that a plan compares by default"""
NOTICEABLE = 0.95
"""an interval is worth its accuracy if an update takes at most this part of the time"""
ADVISABLE = 0.8
"""a plan that was not asked speaks of intervals if the best of them takes at most this part of the time"""
_FACTORS = (1e-9, 1e9)  # of the link's own bandwidth, between which the limit is looked for


def predict_exchange(
    profile: Profile, cluster: Cluster, every_update: Prediction, *, sync_every: int, fragments: int = 1, delay: int = 0
) -> ExchangePrediction:
    """Predict an update of workers that exchange their parameters every ``sync_every`` updates.

    Args:
        profile: the measured task.
        cluster: where it will run.
        every_update: the prediction of the same workers and batch with gradients averaged at every update.
        sync_every: updates between two exchanges, H.
        fragments: ``sync_fragments`` of the recipe, F.
        delay: ``sync_delay`` of the recipe, tau.

    Raises:
        ProfileError: a value that no recipe may have, or a cluster without a link that is needed.
    """
    for name, value, least, most in (
        ("sync_every", sync_every, 1, math.inf), ("fragments", fragments, 1, sync_every),
        ("delay", delay, 0, sync_every - 1),
    ):  # fmt: skip
        if not least <= value <= most:
            raise ProfileError(name, expected=f"{least} to {most:g}", got=value, do="correct it")
    profile = cluster.profile or profile
    workers, num_bytes = every_update.workers, profile.gradient_bytes
    own = every_update.compute_seconds + every_update.straggler_seconds
    one = all_reduce(num_bytes / fragments, workers, cluster)
    hidden = min(one, delay * own)
    exposed = fragments * (one - hidden + INTERFERENCE * hidden) / sync_every
    step = max(own + exposed, fragments * one / sync_every)
    return ExchangePrediction(
        workers=workers, local_batch=every_update.local_batch, sync_every=sync_every, fragments=fragments, delay=delay,
        exchange_seconds=fragments * one, exposed_seconds=step - own, step_seconds=step,
        share=step / every_update.step_seconds, bytes_per_update=2 * (workers - 1) / workers * num_bytes / sync_every,
    )  # fmt: skip


def worth_below(
    profile: Profile, cluster: Cluster, every_update: Prediction, *, sync_every: int, delay: int = 0
) -> float | None:
    """Return the bytes per second of the slowest link below which an interval saves at least 5 % of an update.

    None if it does at any bandwidth, since latency alone is worth it, or at none; and on the profiled machine, whose
    exchanges are measured and not those of a link.
    """
    if cluster.is_profiled or every_update.workers == 1:
        return None
    name = "between" if every_update.nodes > 1 else "inside"
    link = cluster.link(name)

    def saves(factor: float) -> bool:
        other = replace(cluster, **{name: replace(link, bandwidth=factor * link.bandwidth)})  # type: ignore[arg-type]
        local, workers = every_update.local_batch, every_update.workers
        accumulate = every_update.global_batch // (local * workers)
        found = predict(profile, other, workers=workers, local_batch=local, accumulate=accumulate)
        return predict_exchange(profile, other, found, sync_every=sync_every, delay=delay).share <= NOTICEABLE

    low, high = _FACTORS
    if saves(high) or not saves(low):
        return None
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if saves(middle) else (low, middle)
    return low * link.bandwidth


def compare_exchanges(
    profile: Profile, cluster: Cluster, every_update: Prediction, intervals: Sequence[int], *, delay: int = 0
) -> list[ExchangePrediction]:
    """Predict an update for several intervals, each with the bandwidth below which it is worth it."""
    found = []
    for interval in sorted(set(intervals)):
        one = predict_exchange(profile, cluster, every_update, sync_every=interval, delay=delay)
        limit = worth_below(profile, cluster, every_update, sync_every=interval, delay=delay)
        found.append(replace(one, worth_below=limit))
    return found


def advised(rows: Sequence[ExchangePrediction]) -> ExchangePrediction | None:
    """Return the shortest interval that is within 5 % of the fastest; None if none saves a noticeable part."""
    fastest = min((row.step_seconds for row in rows), default=0.0)
    found = next((row for row in rows if NOTICEABLE * row.step_seconds <= fastest), None)
    return found if found is not None and found.share <= NOTICEABLE else None


def advice_on_exchanges(plan: Plan) -> list[str]:
    """Say which interval would pay on this cluster, how it is rehearsed, and that its accuracy is not known."""
    if not plan.exchanges:
        return []
    first, taken = plan.exchanges[0], advised(plan.exchanges)
    each = milliseconds(first.step_seconds / first.share)
    where = f"{first.workers:,} workers on {plan.cluster} at local batch {first.local_batch:,}"
    if taken is None:
        return [
            f"Exchanging parameters less often than gradients saves less than {percent(1 - NOTICEABLE, places=0)} of "
            f"an update of {where} ({each}): average the gradients at every update."
        ]
    settings = f"--set batch={taken.local_batch} --set sync_every={taken.sync_every}"
    settings += f" --set sync_delay={taken.delay}" * (taken.delay > 0)
    text = (
        f"Over this link sync_every = {taken.sync_every} takes {digits(taken.share, 2)} of the time of an update: "
        f"{milliseconds(taken.step_seconds)} instead of {each} for {where}, and sends {amount(taken.bytes_per_update)} "
        f"a worker instead of {amount(taken.bytes_per_update * taken.sync_every)}."
    )
    if taken.worth_below is not None:
        text += f" From {bits_per_second(taken.worth_below)} on it would save less than "
        text += f"{percent(1 - NOTICEABLE, places=0)}."
    elif plan.cluster != THIS_MACHINE:
        text += " More bandwidth would not change that: the latency alone is worth it."
    task = plan.task if plan.task_file is None else plan.task_file.argument()
    return [
        f"{text} What it does to the accuracy is not predicted: rehearse it with `rueda train {task} --workers "
        f"{taken.workers} --rehearse {settings}`."
    ]
