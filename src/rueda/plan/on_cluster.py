"""How long the training that a target error needs takes on a cluster, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from rueda.plan.cluster import Cluster
from rueda.plan.prediction import basis, predict
from rueda.records.forecast import Estimate, Forecast, OnCluster
from rueda.records.profile import Profile


def time_on_cluster(
    forecast: Forecast, profile: Profile, cluster: Cluster, *, workers: int, local_batch: int
) -> Forecast:
    """Add to a forecast how long the training that it found necessary takes on a cluster, at the predicted throughput.

    Args:
        forecast: the answer of :func:`rueda.plan.data_needed.extrapolate`; without a ``need``, only notes are added.
        profile: the measured speed of the task's model.
        cluster: where the training will run.
        workers: the number of workers.
        local_batch: examples in one forward pass of one worker.

    Raises:
        ProfileError: the batch does not fit, or the cluster lacks a link that is needed.
    """
    step = predict(profile, cluster, workers=workers, local_batch=local_batch)
    notes = [*forecast.notes]
    if profile.task != forecast.task:
        notes.append(f"the profile is of task {profile.task}, not of {forecast.task}: the time is that of its model")
    if basis(profile, cluster) == "assumed":
        notes.append(f"the speed of {cluster.name} against the profiled device is not known: taken as the same")
    elif basis(profile, cluster) == "roofline":
        notes += step.warnings
    if forecast.need is None:
        return replace(forecast, notes=tuple(notes))

    def hours(examples: float) -> float:
        return forecast.epochs * forecast.epoch_examples(examples) / step.images_per_second / 3600

    need = forecast.need.examples
    length = Estimate(
        value=hours(need.value), low=hours(need.low), high=None if need.high is None else hours(need.high)
    )  # fmt: skip
    price = cluster.price_per_hour
    answer = OnCluster(
        cluster=cluster.name, workers=workers, local_batch=local_batch, images_per_second=step.images_per_second,
        hours=length, cost=None if price is None else price * step.nodes * length.value, currency=cluster.currency,
    )  # fmt: skip
    if step.global_batch > forecast.batch:
        notes.append(
            f"the time on {cluster.name} is for as many examples as batch {forecast.batch} needs; a global batch of "
            f"{step.global_batch:,} may need more (rueda plan)"
        )
    return replace(forecast, cluster=answer, notes=tuple(notes))
