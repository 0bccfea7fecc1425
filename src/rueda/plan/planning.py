"""The plan: every number of workers with every local batch, its time and its price, and the one to take.

Phases: **base**, what one worker does; **rows**, a prediction for workers x batch; **choose**, the best batch for each
number of workers and then the number of workers; **say** it in words, with what is not known.

A batch that would leave fewer than 128 updates to the whole training is not chosen.

How many workers: the fastest that cost at most twice the cheapest, to the target. Where the cluster has no price, hours
x workers are the cost, so that each must give at least half of what it would give alone; at the critical batch an
example is worth half, too. Where it has one, nodes are paid whole, and devices that stand idle in them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rueda.errors import ProfileError, RecipeError
from rueda.plan.advice import FEWEST_UPDATES, WORTH, advise, cost
from rueda.plan.cluster import Cluster
from rueda.plan.noise import is_early, noise_of, statistical_efficiency, updates_needed
from rueda.plan.prediction import Prediction, predict
from rueda.records.plan import Plan, PlanNoise, PlanRow
from rueda.records.profile import Profile
from rueda.records.recipe.recipe import Recipe

MOST_GROWTH = 8
"""how many times one worker's batch the global batch may be where no noise scale says more. The planned recipe kept the
accuracy at 4 and 8 times, and lost 6.5 points at 32 times (Fashion-MNIST, 145 updates)"""


def make_plan(
    profile: Profile,
    cluster: Cluster,
    *,
    workers: Sequence[int],
    epochs: int | None = None,
    batch: int | None = None,
    batch_norm: bool = False,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan a training.

    Args:
        profile: what was measured.
        cluster: where it shall run.
        workers: numbers of workers to compare; one alone is the plan for as many.
        epochs: of one worker's training; by default those of the profiled recipe.
        batch: local batch; by default the one with the most progress a second, or one worker's where the noise scale,
            which decides that, is not known or was measured too early.
        batch_norm: the model has batch norm, even if the recipe does not say so.
        command: what was typed, to be kept.
        environment: where it was, to be kept.

    Raises:
        ProfileError: no workers, a batch that does not fit, a cluster without links, or a profile without its recipe.
    """
    if not workers or min(workers) < 1:
        got = ",".join(map(str, workers)) or "none"
        raise ProfileError("workers", expected="numbers of 1 or more", got=got, do="give e.g. 1,2,4,8")
    if cluster.profile is not None:
        profile = _of_its_own(profile, cluster.profile)
    # Base.
    base = base_recipe(profile, epochs)
    noise = noise_of(profile)
    counts = sorted({1, *workers})
    # Rows.
    rows = [row for count in counts for row in _rows(profile, cluster, base, noise, count, batch)]
    # Choose.
    keep_batch = batch is None and (noise is None or is_early(noise, base.epochs))
    rows = _choose(rows, sorted(set(workers)), base, profile.examples, keep_batch=keep_batch)
    # Say.
    plan = Plan(
        task=profile.task, device=cluster.device or profile.device, cluster=cluster.name, cluster_title=cluster.title,
        examples=profile.examples, base_batch=base.global_batch, base_rate=base.rate, base_epochs=base.epochs,
        noise=noise, rows=tuple(rows), sources=cluster.sources,
        currency=cluster.currency if cluster.price_per_hour is not None else None, command=command,
        environment=dict(environment or {}),
    )  # fmt: skip
    return advise(plan, profile, cluster, base, batch_norm=batch_norm)


def _of_its_own(profile: Profile, other: Profile) -> Profile:
    """Take times and memory from the profile of the cluster's own device, the training from the given one."""
    if other.task != profile.task:
        raise ProfileError(
            f"the cluster's profile: expected one of {profile.task}, got {other.task}; measure that task"
        )
    return replace(other, recipe=profile.recipe, examples=profile.examples, noise=profile.noise or other.noise)


def base_recipe(profile: Profile, epochs: int | None = None) -> Recipe:
    """Give the recipe with which one worker trains, from the profile."""
    try:
        recipe = Recipe.from_toml(profile.recipe)
        base = recipe.change(workers=1, base_batch=None)
        if recipe.base_batch is not None and recipe.base_batch != base.local_batch:
            # The rate belongs to another batch; that one is where one worker stands.
            base = base.change(batch=recipe.base_batch, accumulate=1)
        return base if epochs is None else base.change(epochs=epochs)
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
        workers=one.workers, nodes=one.nodes, scaling=kind, local_batch=one.local_batch, global_batch=one.global_batch,
        step_seconds=one.step_seconds, compute_seconds=one.compute_seconds, sync_seconds=one.sync_seconds,
        exposed_seconds=one.exposed_seconds, straggler_seconds=one.straggler_seconds,
        images_per_second=one.images_per_second, efficiency=one.efficiency,
        speedup=one.images_per_second / alone.images_per_second, statistical_efficiency=worth,
        goodput=None if worth is None else worth * one.images_per_second, updates=updates,
        epochs=updates * one.global_batch / profile.examples, hours=hours,
        money=None if price is None else hours * one.nodes * price, warnings=one.warnings,
    )  # fmt: skip


def _choose(rows: list[PlanRow], asked: list[int], base: Recipe, examples: int, *, keep_batch: bool) -> list[PlanRow]:
    """Mark the best batch of each number of workers, and the row to take.

    Args:
        rows: all.
        asked: the numbers of workers to choose from.
        base: one worker's recipe.
        examples: in the training set.
        keep_batch: what a larger batch costs is not known, so one worker's local batch stays; it becomes smaller where
            the global batch would grow more than 8-fold, or too few updates would be left.
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
        else:  # where it was measured rather than where it is extrapolated
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
