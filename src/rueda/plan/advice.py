"""Write a plan in words: how many workers and why, the warnings, and what the plan does not know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from rueda.optim.batch_growth import BatchGrowth
from rueda.plan.choice import choose_recipe
from rueda.plan.cluster import Cluster
from rueda.plan.exchange_interval import advice_on_exchanges
from rueda.plan.failure_advice import (
    advice_on_failures,
    assumed_of_failures,
    warnings_on_failures,
    with_checkpoints,
)
from rueda.plan.noise import is_early
from rueda.plan.prediction import basis
from rueda.plan.rules import FEWEST_UPDATES, MOST_SCALE, UNKNOWN_SCALE, largest_batch
from rueda.records.plan import Plan, PlanNoise
from rueda.records.profile import Profile
from rueda.records.recipe.recipe import Recipe
from rueda.terminal.numbers import digits, milliseconds, money, predicted_time, things

WORTH = 0.5
"""a plan is worth its cost if it costs at most 1 / WORTH times as much as the cheapest one"""


NOTICEABLE = 1.05
"""a plan counts as faster if it takes this many times less time"""


class Priced(Protocol):
    """A training, or a phase of one, with its time and its price."""

    @property
    def workers(self) -> int: ...  # noqa: D102
    @property
    def hours(self) -> float: ...  # noqa: D102
    @property
    def money(self) -> float | None: ...  # noqa: D102


Row = TypeVar("Row", bound=Priced)


def cost(row: Priced) -> float:
    """Return the cost of a row's training: money, or hours x workers if the cluster has no price."""
    return row.hours * row.workers if row.money is None else row.money


def fastest_worth_it(rows: Sequence[Row], cheapest: float) -> Row:
    """Return the fastest of some rows that is worth its cost; the first one if none is.

    Args:
        rows: in the order of their number of workers; more workers must be noticeably faster.
        cheapest: the cost of the cheapest plan.
    """
    affordable = [row for row in rows if cost(row) * WORTH <= cheapest] or rows[:1]
    taken = affordable[0]
    for row in affordable[1:]:
        if NOTICEABLE * row.hours < taken.hours:
            taken = row
    return taken


def advise(plan: Plan, profile: Profile, cluster: Cluster, base: Recipe, *, batch_norm: bool | None = None) -> Plan:
    """Return the plan with its advice, warnings, unknowns and recipe."""
    row = plan.chosen
    recipe = choose_recipe(
        base, workers=row.workers, local_batch=row.local_batch, noise=plan.noise, examples=plan.examples,
        batch_norm=batch_norm,
        growth=None if row.growth_factor is None
        else BatchGrowth(row.global_batch, row.growth_factor, row.growth_epochs),
        growth_epochs=None if row.growth_factor is None else int(row.epochs),
    )  # fmt: skip
    if row.workers > 1:
        speed = f"{row.images_per_second:,.0f} {plan.unit}/s"
        why = f"{speed} on {plan.cluster}, scaling efficiency {100 * row.efficiency:.0f} %"
        recipe = recipe.change(reasons={**recipe.reasons, "workers": why})
    on_failures: list[str] = []
    if plan.failures is not None:
        recipe = with_checkpoints(recipe, plan.failures)
        on_failures = advice_on_failures(plan.failures, recipe)
    return replace(
        plan,
        advice=(
            _workers(plan), *_useful(plan), _batch(plan), *_joining(plan), _rate(recipe), *on_failures,
            *advice_on_exchanges(plan),
        ),
        warnings=(*_assumption(profile, cluster), *_warnings(plan)),
        unknown=tuple(_unknown(plan, profile, cluster)),
        recipe=recipe.to_toml(),
    )  # fmt: skip


def _workers(plan: Plan) -> str:
    row, rows = plan.chosen, plan.best()
    alone, most = rows[0], rows[-1]
    who = f"{things(row.workers, 'worker')} on {things(row.nodes, 'node')}"
    is_worth = WORTH * cost(row) <= min(cost(other) for other in rows)
    text = f"{'Take' if is_worth else 'As asked,'} {who}: {row.images_per_second:,.0f} {plan.unit}/s"
    if row.workers > 1:
        text += f", {alone.hours / row.hours:.3g} times the progress of one worker"
        text += f" at a scaling efficiency of {100 * row.efficiency:.0f} %"
    text += f", {predicted_time(3600 * row.hours)} "
    if row.workers > 1:
        text += f"of training instead of {predicted_time(3600 * alone.hours)} for the same result"
    else:
        text += f"to reach the result of {things(plan.base_epochs, 'epoch')} at batch {plan.base_batch:,}"
    text += "." if row.money is None else f", {money(row.money)} {plan.currency}."
    if most is not row:
        worth = alone.hours / (most.workers * most.hours)
        text += (
            f" {most.workers:,} workers would take {predicted_time(3600 * most.hours)}"
            f"{f' at {money(most.money)} {plan.currency}' if most.money is not None else ''}: "
            f"each adds {100 * worth:.0f} % of the progress that one worker makes alone."
        )
    return text


def _useful(plan: Plan) -> list[str]:
    """Say beyond how many workers another one is wasted, from the time to the result of 1, 2, 4 ... workers."""
    if plan.useful_workers is None or len(plan.curve) == 1:
        return []
    times = ", ".join(f"{point.workers:,}: {predicted_time(3600 * point.hours)}" for point in plan.curve)
    text = f"Time to one worker's result by number of workers: {times}."
    if plan.useful_workers < plan.curve[-1].workers:
        text += f" Beyond {plan.useful_workers:,} another worker is wasted: the time falls by less than 5 %."
        if plan.chosen.workers > plan.useful_workers:
            text += f" {things(plan.chosen.workers, 'worker')} are taken because the choice was among those asked for."
        return [text]
    last = plan.curve[-1].workers
    ended = 2 * last <= max(row.workers for row in plan.rows)
    return [f"{text} It still falls at {last:,}{', the most that the updates or the cluster allow' * ended}."]


def _batch(plan: Plan) -> str:
    row, noise = plan.chosen, plan.noise
    text = f"Local batch {row.local_batch:,}, global batch {row.global_batch:,}"
    if row.growth_factor is not None:
        epochs = ", ".join(map(str, row.growth_epochs))
        text += f", growing to {row.final_batch:,} (x {row.growth_factor} after epochs {epochs})"
    if noise is None or row.statistical_efficiency is None:
        scales = dict.fromkeys(f"{batch / plan.base_batch:.3g}" for batch in (row.global_batch, row.final_batch))
        return text + f": {' to '.join(scales)} times the global batch of one worker."
    at_first, at_last = ("below" if batch < noise.value else "above" for batch in (row.global_batch, row.final_batch))
    where = at_first if at_first == at_last else f"{at_first} and in the end {at_last}"
    mean = " on average" if row.growth_factor is not None else ""
    return text + (
        f", {where} the critical batch size of about {noise.value:,.0f}: each example contributes{mean} "
        f"{100 * row.statistical_efficiency:.0f} % of what it does in a batch of {plan.base_batch:,}."
    )


def _joining(plan: Plan) -> list[str]:
    """Say which workers may join later, as the batch grows, and what that saves."""
    found, row = plan.joining, plan.chosen
    if found is None:
        return []
    if not found.grows:
        most = found.phases[-1].workers
        if most == row.workers:
            return [f"All {row.workers:,} workers pay from the start, while the batch is still small."]
        return [f"In no phase of the growth more than {things(most, 'worker')} pay."]
    times = f"{predicted_time(3600 * found.hours)} instead of {predicted_time(3600 * row.hours)}"
    hours = f"{digits(found.node_hours)} node-hours instead of {digits(row.nodes * row.hours)}"
    if found.money is None or row.money is None:
        paid = f"{digits(found.worker_hours)} worker-hours instead of {digits(row.workers * row.hours)}, {hours}"
    else:
        paid = f"{money(found.money)} {plan.currency} instead of {money(row.money)}, {hours}"
    return [
        f"The early, small batches do not need all workers. They may join as the batch grows: {found.words()}; "
        f"{times}, {paid}. This needs an elastic launcher, or stopping at these epochs and resuming with more workers "
        "(`rueda train --resume`); the time for that is not included."
    ]


def _rate(recipe: Recipe) -> str:
    factor = {"linear": recipe.scale, "sqrt": math.sqrt(recipe.scale)}.get(recipe.scaling, 1.0)
    text = f"Optimizer {recipe.optimizer}"
    text += f" ({recipe.reasons['optimizer']})" if "optimizer" in recipe.reasons else ""
    text += f", learning rate {recipe.rate * factor:.4g}"
    if factor != 1:
        text += f" = {recipe.rate:.4g} x {factor:.3g} ({recipe.scaling} scaling: {recipe.reasons.get('scaling', '')})"
    text += f", warm-up {recipe.warmup_epochs:.3g} epochs" if recipe.warmup_epochs else ", no warm-up"
    text += f", {recipe.schedule} schedule, {recipe.epochs} epochs"
    text += ", synchronised batch norm" * recipe.sync_batch_norm
    return text + (f", ghost batches of {recipe.ghost_batch}." if recipe.ghost_batch else ".")


def allowed_batch(noise: PlanNoise | None, base_batch: int, base_epochs: float) -> float:
    """Return the largest global batch that the rules allow from the start (:mod:`rueda.plan.rules`).

    >>> allowed_batch(None, 32, 10)
    64
    """
    if noise is None:
        return UNKNOWN_SCALE * base_batch
    most = largest_batch(noise, base_batch)
    return min(most, MOST_SCALE * base_batch) if is_early(noise, base_epochs) else most


def _warnings(plan: Plan) -> list[str]:
    """List where more workers are slower or not worth their cost, and where the profile is extrapolated."""
    found = []
    alone = {row.local_batch: row for row in plan.rows if row.workers == 1}
    for row in plan.best():
        one = alone.get(row.local_batch)
        if row.workers > 1 and one is not None:
            ratio = row.images_per_second / one.images_per_second
            if ratio < 1:
                found.append(
                    f"{row.workers:,} workers would be slower than one: {ratio:.2f}x the {plan.unit}/s at local batch "
                    f"{row.local_batch:,} (compute {milliseconds(row.compute_seconds)}, all-reduce "
                    f"{milliseconds(row.sync_seconds)}); use a larger local batch, a faster link, or fewer workers."
                )
    row, rows = plan.chosen, plan.best()
    cheapest = min(rows, key=cost)
    if WORTH * cost(row) > cost(cheapest):
        found.append(
            f"{things(row.workers, 'worker')} cost {cost(row) / cost(cheapest):.2g} times as much as "
            f"{cheapest.workers:,}, for {cheapest.hours / row.hours:.2g} times the progress per second."
        )
    if row.updates < FEWEST_UPDATES:
        found.append(
            f"{row.epochs:.0f} epochs have only {row.updates:,.0f} updates, too few for most networks; use fewer "
            "workers, a smaller batch or more epochs."
        )
    elif row.global_batch > plan.base_batch and row.updates < 2 * FEWEST_UPDATES:
        found.append(
            f"{row.updates:,.0f} updates are few: the result may be worse than that of one worker; rehearse the recipe."
        )
    most = allowed_batch(plan.noise, plan.base_batch, plan.base_epochs)
    noise = plan.noise
    if noise is not None and is_early(noise, plan.base_epochs) and row.final_batch > max(noise.value, row.global_batch):
        found.append(
            f"the batch grows to {row.final_batch:,}, past the noise scale of {noise.value:,.0f}, which was measured "
            f"in the first {noise.epochs:.2g} of {plan.base_epochs} epochs: that this grows as well is not known, and "
            "the result may be worse than that of one worker; rehearse the recipe."
        )
    if row.global_batch > max(most, plan.base_batch):
        found.append(
            f"the global batch of {row.global_batch:,} is larger than {most:,.0f}, the largest that the rules allow: "
            + (
                "beyond it an example contributes less than half of what it does in one worker's batch."
                if plan.noise is not None and not is_early(plan.noise, plan.base_epochs)
                else "the noise scale is not known well enough for more."
            )
        )
    if row.final_batch > plan.base_batch and plan.noise is None:
        found.append(
            f"the noise scale is not known, so nothing says that {row.final_batch / plan.base_batch:.3g} times the "
            "batch of one worker keeps its result in as many epochs; rehearse the recipe."
        )
    if plan.failures is not None:
        found += warnings_on_failures(plan.failures)
    return found + sorted({text for row in plan.best() for text in row.warnings})


def _assumption(profile: Profile, cluster: Cluster) -> list[str]:
    """Say loudly that times of one device are used for another one of which nothing is known."""
    if basis(profile, cluster) != "assumed":
        return []
    if cluster.peaks is None:
        missing, do = "its peaks are not known", "give --speed, a profile that was measured there, or [device.peaks]"
    else:
        missing = "the profile has no counted flops and bytes for its roofline"
        do = "measure again with `rueda measure`, or give --speed or a profile that was measured there"
    return [
        f"EXTRAPOLATED: nothing was measured on the {cluster.device or 'device'} of {cluster.name}, and {missing}: all "
        f"times are those of {profile.device}, as if both were equally fast; {do}."
    ]


def _unknown(plan: Plan, profile: Profile, cluster: Cluster) -> list[str]:
    found = []
    noise = plan.noise
    if noise is None:
        tried = " (too few steps were measured to bound it)" if profile.noise else ""
        found.append(
            f"The gradient noise scale{tried}: hours assume that every batch size needs as many epochs as one worker."
        )
    elif is_early(noise, plan.base_epochs):
        found.append(
            f"The noise scale later in the training: it was measured after {noise.step:,} updates ({noise.epochs:.2g} "
            f"of {plan.base_epochs} epochs), and it grows; fewer epochs of large batches may do."
        )
    if noise is not None and noise.high is None:
        found.append("An upper bound of the noise scale: measure more steps.")
    if basis(profile, cluster) == "assumed":
        found.append(
            f"The speed of the {cluster.device or 'device'} of {cluster.name} relative to the profiled "
            f"{profile.device}: assumed to be equal. Give --speed; with a faster device communication takes a larger "
            "share of a step."
        )
    if basis(profile, cluster) == "roofline":
        found.append(f"Step times on the {cluster.device}: none was measured.")
    else:
        largest = max(step.batch for step in profile.steps)
        found.append(f"Step times above local batch {largest:,}: not measured.")
    if profile.largest_batch is None:
        found.append("The largest batch that fits into memory.")
    if cluster.approximate:
        found.append(f"Exact values of {', '.join(cluster.approximate)} of {cluster.name}: the plan uses rough ones.")
    if plan.currency is None:
        found.append("The price: the cluster file has none.")
    if plan.failures is not None:
        found += assumed_of_failures(plan.failures, cluster)
    found.append("The time of evaluation, checkpoints and reading data from disk: not included.")
    return found
