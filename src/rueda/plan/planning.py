"""Make a plan: predict time and cost of every number of workers at every local batch, and recommend one of them.

Phases: **base**, the training of one worker; **rows**, a prediction for each workers x batch; **choose**, the batch
that takes the least time to one worker's result for each number of workers, then the number of workers, and which of
them may **join** later (:mod:`rueda.plan.joining`); the **curve** of that time against the number of workers;
**failures** of the nodes, and how often to save (:mod:`rueda.plan.failure_planning`); **advise** in words, and list
what is not known.

Every row says what its recipe runs, by the rules in :mod:`rueda.plan.rules`: whole epochs, their updates, and, where
the batch grows, the time of each batch.

The number of workers: the fastest plan that costs at most twice as much as the cheapest one. If the cluster has no
price, the cost is hours x workers, so that each worker must add at least half of the progress that it makes alone. If
it has a price, whole nodes are paid for, including devices that stand idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from rueda.errors import ProfileError, RecipeError
from rueda.optim.batch_growth import BatchGrowth, num_updates
from rueda.plan.advice import advise, allowed_batch, cost, fastest_worth_it
from rueda.plan.choice import knows_batch_norm
from rueda.plan.cluster import Cluster
from rueda.plan.failure_planning import plan_failures
from rueda.plan.form_choice import compare_forms, predict_form, reason
from rueda.plan.joining import joining_of
from rueda.plan.noise import is_early, noise_of, statistical_efficiency
from rueda.plan.prediction import predict
from rueda.plan.rules import (
    FEWEST_UPDATES,
    LINEAR,
    epochs_needed,
    growth_epochs,
    growth_range,
    growth_to,
)
from rueda.records.plan import CurvePoint, Plan, PlanNoise, PlanRow, Prediction
from rueda.records.profile import Profile
from rueda.records.recipe.parallel_form import Mesh
from rueda.records.recipe.recipe import Recipe


def make_plan(
    profile: Profile,
    cluster: Cluster,
    *,
    workers: Sequence[int],
    epochs: int | None = None,
    batch: int | None = None,
    batch_norm: bool | None = None,
    hours: float | None = None,
    always_failures: bool = False,
    parallelism: bool = False,
    environment: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan a training.

    Args:
        profile: the measured task.
        cluster: where the training will run.
        workers: the numbers of workers to compare; a single number is the only candidate.
        epochs: epochs of one worker's training; by default those of the profiled recipe.
        batch: the local batch; by default the one with the least time to one worker's result.
        batch_norm: whether the model has batch norm; None: as the profile says.
        hours: how long the training is taken to last for its failures; by default as predicted.
        always_failures: plan checkpoints and spare nodes also where failures are negligible.
        parallelism: also predict the other parallel forms (:mod:`rueda.plan.parallel_forms`); they are predicted in any
            case if the model does not fit into the memory of a worker.
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
    noise = noise_of(profile, base.global_batch)
    for known in (profile.batch_norm, knows_batch_norm(base)):
        batch_norm = known if batch_norm is None else batch_norm
    planned = _Planned(profile, cluster, base, noise, batch, batch_norm is True)
    asked = sorted(set(workers))
    # Rows.
    found = {count: planned.rows(count) for count in sorted({1, *asked})}
    # Choose.
    best = {count: planned.best(rows) for count, rows in found.items()}
    taken = _choose([best[count] for count in asked], list(best.values()))
    rows = []
    for count, of_count in found.items():
        rows += [one for one in of_count if one.local_batch != best[count].local_batch]
        rows.append(replace(best[count], best=True, recommended=best[count] is taken))
    # Curve.
    curve = tuple(planned.curve(most=max(64, 2 * max(asked))))
    # Failures.
    if hours is not None and not 0 < hours < inf:
        raise ProfileError("hours", expected="more than 0 and finite", got=hours, do="correct it")
    failures = plan_failures(taken, profile, cluster, hours=hours, always=always_failures or hours is not None)
    # Advise.
    plan = Plan(
        task=profile.task, unit=profile.unit, device=cluster.device or profile.device, cluster=cluster.name,
        cluster_title=cluster.title, examples=profile.examples, base_batch=base.global_batch,
        base_rate=base.rate, base_epochs=base.epochs,
        noise=noise, rows=tuple(rows), curve=curve, sources=cluster.sources,
        currency=cluster.currency if cluster.price_per_hour is not None else None,
        command=(environment or {}).get("command", ""), environment=dict(environment or {}),
        task_file=profile.task_file, joining=joining_of(taken, profile, cluster, base),
        failures=failures, **_forms(profile, cluster, taken, asked, always=parallelism),
    )  # fmt: skip
    return advise(plan, profile, cluster, base, batch_norm=batch_norm)


def _forms(profile: Profile, cluster: Cluster, taken: PlanRow, asked: Sequence[int], *, always: bool) -> dict[str, Any]:
    """Return the fields of a plan about parallel forms: of the recommended workers, or of the most that were asked for.

    Nothing, unless they are asked for or data parallelism does not fit.

    Raises:
        ProfileError: they are asked for and the profile has no layers, or no number of workers is more than 1.
    """
    if not always and not profile.layers:
        return {}
    workers, batch = taken.workers, taken.global_batch
    if workers == 1 and max(asked) > 1:
        workers = max(asked)
        batch = max(batch, workers)
    if always and workers == 1:
        raise ProfileError("parallelism", expected="2 or more workers", got=1, do="give e.g. --workers 2")
    data = predict_form(profile, cluster, Mesh(data=workers), batch=batch)
    if not always and (data.fits is not False or workers == 1):
        return {}
    found, refused = compare_forms(profile, cluster, workers=workers, batch=batch)
    return {
        "forms": tuple(found), "forms_batch": batch, "form_reason": reason(found, profile, cluster),
        "refused_forms": tuple(refused),
    }  # fmt: skip


def _with_times_of(other: Profile, profile: Profile) -> Profile:
    """Return the cluster's own profile (times, memory) with recipe, training set and noise scale of the given one."""
    if other.task != profile.task:
        raise ProfileError(
            f"the cluster's profile: expected one of {profile.task}, got {other.task}; measure that task"
        )
    return replace(
        other, recipe=profile.recipe, examples=profile.examples, noise=profile.noise or other.noise,
        task_file=profile.task_file, batch_norm=other.batch_norm if profile.batch_norm is None else profile.batch_norm,
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


@dataclass(frozen=True)
class _Planned:
    """One worker's training and the cluster: what a number of workers makes of them."""

    profile: Profile
    cluster: Cluster
    base: Recipe
    noise: PlanNoise | None
    batch: int | None
    """the local batch that was asked for"""
    batch_norm: bool

    @property
    def is_cautious(self) -> bool:
        """Whether the noise scale is not known, or only early in the training."""
        return self.noise is None or is_early(self.noise, self.base.epochs)

    def rows(self, workers: int) -> list[PlanRow]:
        """Return a row for each local batch."""
        weak, total = self.base.local_batch, self.base.global_batch
        strong = total // workers if total % workers == 0 else None
        if self.batch is not None:
            sizes = {self.batch}
        else:
            measured = {step.batch for step in self.profile.steps}
            halves = {weak >> power for power in range(weak.bit_length())}
            # Doublings as far as times are interpolated: else the best batch would be that of the profile's gaps.
            doubles = {weak << power for power in range((max(measured) // weak).bit_length())}
            sizes = halves | doubles | measured | ({strong} if strong else set())
            largest = self.profile.largest_batch
            sizes = {size for size in sizes if largest is None or size <= largest}
            sizes = {size for size in sizes if size * workers <= self.profile.examples} or {1}
        found = []
        for size in sorted(sizes):
            one = predict(self.profile, self.cluster, workers=workers, local_batch=size)
            kind = "weak" if size == weak else "strong" if size == strong else "other"
            found.append(self._row(one, kind))
        return found

    def _row(self, one: Prediction, kind: str) -> PlanRow:
        fits = min(self.base.local_batch, self.profile.largest_batch or self.base.local_batch)
        alone = predict(self.profile, self.cluster, workers=1, local_batch=fits)
        worth = None
        if self.noise is not None:
            worth = statistical_efficiency(one.global_batch, self.base.global_batch, self.noise.value)
        epochs = epochs_needed(self.base.epochs, worth)
        count = max(1, num_updates(one.global_batch, epochs, num_examples=self.profile.examples))
        return PlanRow(
            **vars(one), scaling=kind, speedup=one.images_per_second / alone.images_per_second,
            statistical_efficiency=worth, goodput=None if worth is None else worth * one.images_per_second,
            updates=count, epochs=epochs, **self._price(count * one.step_seconds / 3600, one.nodes),
        )  # fmt: skip

    def _price(self, hours: float, nodes: int) -> dict[str, Any]:
        price = self.cluster.price_per_hour
        return {"hours": hours, "money": None if price is None else hours * nodes * price}

    def best(self, rows: Sequence[PlanRow]) -> PlanRow:
        """Return the row of a number of workers with the least time to the result, of a constant or a growing batch.

        The batch is at least that of one worker and at most as large as :mod:`rueda.plan.rules` allows.
        """
        if len(rows) == 1:
            return rows[0]
        base, least = self.base, min(rows, key=lambda row: row.local_batch)
        usable = [row for row in rows if row.updates >= FEWEST_UPDATES] or [least]
        most = allowed_batch(self.noise, base.global_batch, base.epochs)
        usable = [row for row in usable if row.global_batch <= most] or [least]
        if self.is_cautious:
            usable = [row for row in usable if row.local_batch <= base.local_batch] or usable
        else:  # prefer measured batches to extrapolated ones
            usable = [row for row in usable if not row.warnings] or usable
        enough = [row for row in usable if row.global_batch >= base.global_batch]
        enough = enough or [max(usable, key=lambda row: row.global_batch)]
        growing = self._growing(rows)
        enough += [] if growing is None else [growing]
        return min(enough, key=lambda row: (row.hours, -row.local_batch))

    def _growing(self, rows: Sequence[PlanRow]) -> PlanRow | None:
        """Return the row whose batch grows to what the training bears later, in the least time; None if none may."""
        base = self.base
        if not self.batch_norm or base.optimizer not in LINEAR:
            return None
        if base.schedule != "constant" or base.growth_factor or base.growth_from_noise:
            return None
        first, last = growth_range(self.noise, base.global_batch, is_early=self.is_cautious)
        sizes = [row.global_batch for row in rows if base.global_batch <= row.global_batch <= 2 * base.global_batch]
        first = max(first, min(sizes, default=0))  # if the workers cannot share one worker's batch
        grown = [self._grown(row, last) for row in rows if base.global_batch <= row.global_batch <= first]
        return min((row for row in grown if row is not None), key=lambda row: row.hours, default=None)

    def _grown(self, row: PlanRow, last: float) -> PlanRow | None:
        """Return a row with a batch that grows to at most ``last``; None if it cannot, or makes too few updates."""
        base, examples, noise = self.base, self.profile.examples, self.noise
        largest = min(last, row.workers * base.local_batch, examples / 10)

        def worth(epoch: int, batch: int) -> float:
            if noise is None:
                return 1.0
            later = noise.last_low if noise.last_low is not None and epoch >= noise.epochs else 0.0
            return statistical_efficiency(batch, base.global_batch, max(noise.value, later))

        epochs = growth_epochs(partial(growth_to, row.global_batch, largest), worth, base.epochs)
        growth = None if epochs is None else growth_to(row.global_batch, largest, epochs)
        if growth is None or epochs is None:
            return None
        count = num_updates(growth, epochs, num_examples=examples)
        if count < FEWEST_UPDATES:
            return None
        hours = self._hours(row.workers, growth, epochs)
        return replace(
            row, growth_factor=int(growth.factor), growth_epochs=tuple(map(int, growth.milestones)), updates=count,
            epochs=epochs, statistical_efficiency=None if noise is None else base.epochs / epochs,
            goodput=None if noise is None else base.epochs * examples / (3600 * hours),
            **self._price(hours, row.nodes),
        )  # fmt: skip

    def _hours(self, workers: int, growth: BatchGrowth, epochs: int) -> float:
        """Add up the time of the epochs, each at its batch."""
        seconds = 0.0
        for epoch in range(epochs):
            batch = growth(epoch)
            one = predict(self.profile, self.cluster, workers=workers, local_batch=batch // workers)
            seconds += self.profile.examples // batch * one.step_seconds
        return seconds / 3600

    def curve(self, most: int) -> Iterator[CurvePoint]:
        """Yield the least time to the result for 1, 2, 4 ... workers, as long as enough updates are left."""
        workers = 1
        while workers <= min(most, self.profile.examples):
            try:
                row = self.best(self.rows(workers))
            except ProfileError:  # the cluster has no link for as many
                return
            if workers > 1 and row.updates < FEWEST_UPDATES:
                return
            yield CurvePoint(workers=workers, hours=row.hours)
            workers *= 2


def _choose(asked: Sequence[PlanRow], rows: Sequence[PlanRow]) -> PlanRow:
    """Return the recommended row: the fastest that is worth its cost.

    Args:
        asked: the best row of each number of workers to choose from.
        rows: those and that of one worker.
    """
    candidates = [row for row in asked if row.updates >= FEWEST_UPDATES] or list(asked[:1])
    return fastest_worth_it(candidates, min(cost(row) for row in rows))
