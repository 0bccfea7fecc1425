"""Make a plan: predict time and cost of every number of workers at every local batch, and recommend one of them.

Phases: **base**, the training of one worker; **rows**, a prediction for each workers x batch; **choose**, the best
batch for each number of workers, then the number of workers; **advise** in words, and list what is not known.

A batch that would leave fewer than 128 updates in the whole training is not chosen.

The number of workers: the fastest plan that costs at most twice as much as the cheapest one. If the cluster has no
price, the cost is hours x workers, so that each worker must add at least half of the progress that it makes alone. If
it has a price, whole nodes are paid for, including devices that stand idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rueda.errors import ProfileError, RecipeError
from rueda.plan.advice import FEWEST_UPDATES, WORTH, advise, cost
from rueda.plan.cluster import Cluster
from rueda.plan.noise import is_early, noise_of, statistical_efficiency, updates_needed
from rueda.plan.prediction import predict
from rueda.records.plan import Plan, PlanNoise, PlanRow, Prediction
from rueda.records.profile import Profile
from rueda.records.recipe.recipe import Recipe

MOST_GROWTH = 8
"""how many times larger than one worker's batch the global batch may be if the noise scale is not known. The planned
recipe kept the accuracy at 4 and 8 times, and lost 6.5 points at 32 times (Fashion-MNIST, 145 updates)"""


def make_plan(
    profile: Profile,
    cluster: Cluster,
    *,
    workers: Sequence[int],
    epochs: int | None = None,
    batch: int | None = None,
    batch_norm: bool = False,
    environment: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan a training.

    Args:
        profile: the measured task.
        cluster: where the training will run.
        workers: the numbers of workers to compare; a single number is the only candidate.
        epochs: epochs of one worker's training; by default those of the profiled recipe.
        batch: the local batch; by default the one with the most progress per second, or that of one worker if the noise
            scale is not known or was measured too early.
        batch_norm: the model has batch norm even if the recipe does not say so.
        environment: machine, versions and command line, for the record.

    Raises:
        ProfileError: no workers, a batch that does not fit, a cluster without links, or a profile without its recipe.
    """
    if not workers or min(workers) < 1:
        got = ",".join(map(str, workers)) or "none"
        raise ProfileError("workers", expected="numbers of 1 or more", got=got, do="give e.g. 1,2,4,8")
    if cluster.profile is not None:
        profile = _with_times_of(cluster.profile, profile)
    # Base.
    base = base_recipe(profile)
    base = base if epochs is None else base.change(epochs=epochs)
    noise = noise_of(profile)
    counts = sorted({1, *workers})
    # Rows.
    rows = [row for count in counts for row in _rows(profile, cluster, base, noise, count, batch)]
    # Choose.
    keep_batch = batch is None and (noise is None or is_early(noise, base.epochs))
    rows = _choose(rows, sorted(set(workers)), base, profile.examples, keep_batch=keep_batch)
    # Advise.
    plan = Plan(
        task=profile.task, unit=profile.unit, device=cluster.device or profile.device, cluster=cluster.name,
        cluster_title=cluster.title, examples=profile.examples, base_batch=base.global_batch,
        base_rate=base.rate, base_epochs=base.epochs,
        noise=noise, rows=tuple(rows), sources=cluster.sources,
        currency=cluster.currency if cluster.price_per_hour is not None else None,
        command=(environment or {}).get("command", ""), environment=dict(environment or {}),
        task_file=profile.task_file,
    )  # fmt: skip
    return advise(plan, profile, cluster, base, batch_norm=batch_norm)


def _with_times_of(other: Profile, profile: Profile) -> Profile:
    """Return the cluster's own profile (times, memory) with recipe, training set and noise scale of the given one."""
    if other.task != profile.task:
        raise ProfileError(
            f"the cluster's profile: expected one of {profile.task}, got {other.task}; measure that task"
        )
    return replace(
        other, recipe=profile.recipe, examples=profile.examples, noise=profile.noise or other.noise,
        task_file=profile.task_file,
    )  # fmt: skip


def base_recipe(profile: Profile) -> Recipe:
    """Return the recipe of one worker's training."""
    try:
        recipe = Recipe.from_toml(profile.recipe)
        base = recipe.change(workers=1, base_batch=None)
        if recipe.base_batch is not None and recipe.base_batch != base.local_batch:
            # The rate was chosen for another batch: that is the batch of one worker's training.
            base = base.change(batch=recipe.base_batch, accumulate=1)
        return base
    except RecipeError as error:
        raise ProfileError(f"profile.recipe: {error}; measure again with `rueda measure`") from None


def _rows(
    profile: Profile, cluster: Cluster, base: Recipe, noise: PlanNoise | None, workers: int, batch: int | None
) -> list[PlanRow]:
    weak, total = base.local_batch, base.global_batch
    strong = total // workers if total % workers == 0 else None
    halves = {weak >> power for power in range(weak.bit_length())}
    sizes = halves | {step.batch for step in profile.steps} | ({strong} if strong else set())
    sizes = {size for size in sizes if profile.largest_batch is None or size <= profile.largest_batch}
    sizes = {size for size in sizes if size * workers <= profile.examples} or {1}
    found = []
    for size in sorted(sizes if batch is None else {batch}):
        one = predict(profile, cluster, workers=workers, local_batch=size)
        kind = "weak" if size == weak else "strong" if size == strong else "other"
        found.append(_row(one, kind, profile, cluster, base, noise))
    return found


def _row(
    one: Prediction, kind: str, profile: Profile, cluster: Cluster, base: Recipe, noise: PlanNoise | None
) -> PlanRow:
    fits = min(base.local_batch, profile.largest_batch or base.local_batch)
    alone = predict(profile, cluster, workers=1, local_batch=fits)
    phi = noise.value if noise is not None else None
    base_updates = base.epochs * profile.examples / base.global_batch
    updates = updates_needed(one.global_batch, base.global_batch, base_updates, phi)
    worth = None if phi is None else statistical_efficiency(one.global_batch, base.global_batch, phi)
    hours = updates * one.step_seconds / 3600
    price = cluster.price_per_hour
    return PlanRow(
        **vars(one), scaling=kind, speedup=one.images_per_second / alone.images_per_second,
        statistical_efficiency=worth, goodput=None if worth is None else worth * one.images_per_second, updates=updates,
        epochs=updates * one.global_batch / profile.examples, hours=hours,
        money=None if price is None else hours * one.nodes * price,
    )  # fmt: skip


def _choose(rows: list[PlanRow], asked: list[int], base: Recipe, examples: int, *, keep_batch: bool) -> list[PlanRow]:
    """Mark the best batch of each number of workers, and the recommended row.

    Args:
        rows: all rows.
        asked: the numbers of workers to choose from.
        base: the recipe of one worker.
        examples: the size of the training set.
        keep_batch: keep the local batch of one worker, because the statistical efficiency of larger ones is not known;
            take a smaller one if the global batch would grow more than 8-fold, or too few updates would be left.
    """
    best: dict[int, PlanRow] = {}
    enough: dict[int, bool] = {}
    for count in {row.workers for row in rows}:
        of_count = [row for row in rows if row.workers == count]
        usable = [row for row in of_count if base.epochs * examples // row.global_batch >= FEWEST_UPDATES]
        enough[count] = bool(usable)
        usable = usable or [min(of_count, key=lambda row: row.local_batch)]
        if keep_batch:
            safe = [row for row in usable if row.global_batch <= MOST_GROWTH * base.global_batch]
            safe = safe or [min(usable, key=lambda row: row.local_batch)]
            smaller = [row for row in safe if row.local_batch <= base.local_batch] or safe
            best[count] = max(smaller, key=lambda row: row.local_batch)
        else:  # prefer measured batches to extrapolated ones
            known = [row for row in usable if not row.warnings] or usable
            best[count] = max(known, key=lambda row: row.progress)
    candidates = [best[count] for count in asked if enough[count]] or [best[asked[0]]]
    cheapest = min(cost(row) for row in best.values())
    affordable = [row for row in candidates if cost(row) * WORTH <= cheapest] or candidates[:1]
    taken = affordable[0]
    for row in affordable[1:]:
        if row.progress > 1.05 * taken.progress:
            taken = row
    return [replace(row, best=row is best[row.workers], recommended=row is taken) for row in rows]
