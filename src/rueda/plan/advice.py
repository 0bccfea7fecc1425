"""The plan in words: how many workers and why, what to beware of, and what is not known."""

from __future__ import annotations

import math
from dataclasses import replace

from rueda.plan.choice import choose_recipe
from rueda.plan.cluster import Cluster
from rueda.plan.noise import is_early
from rueda.records.plan import Plan, PlanRow
from rueda.records.profile import Profile
from rueda.records.recipe.recipe import Recipe
from rueda.terminal.numbers import milliseconds, predicted_time, things

WORTH = 0.5
"""least progress for the money, against the cheapest way"""
FEWEST_UPDATES = 128
"""of a whole training. Shallue et al. 2018 find that a CNN on Fashion-MNIST needs about 2^7 at any batch size; a batch
that leaves fewer is not chosen."""


def cost(row: PlanRow) -> float:
    """Give what a row costs to the target: money, or where there is no price, hours of workers."""
    return row.hours * row.workers if row.money is None else row.money


def advise(plan: Plan, profile: Profile, cluster: Cluster, base: Recipe, *, batch_norm: bool = False) -> Plan:
    """Write advice, warnings, what is not known, and the recipe into a plan."""
    row = plan.chosen
    recipe = choose_recipe(
        base, workers=row.workers, local_batch=row.local_batch, noise=plan.noise, examples=plan.examples,
        batch_norm=batch_norm,
    )  # fmt: skip
    if row.workers > 1:
        why = (
            f"{row.images_per_second:,.0f} images/s on {plan.cluster}, scaling efficiency {100 * row.efficiency:.0f} %"
        )
        recipe = recipe.change(reasons={**recipe.reasons, "workers": why})
    return replace(
        plan,
        advice=(_workers(plan), _batch(plan), _rate(recipe)),
        warnings=tuple(_warnings(plan)),
        unknown=tuple(_unknown(plan, profile, cluster)),
        recipe=recipe.to_toml(),
    )


def _workers(plan: Plan) -> str:
    row, rows = plan.chosen, plan.best()
    alone, most = rows[0], rows[-1]
    who = f"{things(row.workers, 'worker')} on {things(row.nodes, 'node')}"
    is_worth = WORTH * cost(row) <= min(cost(other) for other in rows)
    text = f"{'Take' if is_worth else 'As asked,'} {who}: {row.images_per_second:,.0f} images/s"
    if row.workers > 1:
        text += f", {row.progress / alone.progress:.3g} times the progress of one worker"
        text += f" at a scaling efficiency of {100 * row.efficiency:.0f} %"
    text += f", {predicted_time(3600 * row.hours)} to where one worker comes in {predicted_time(3600 * alone.hours)}"
    text += "." if row.money is None else f", {row.money:,.2f} {plan.currency}."
    if most is not row:
        worth = most.progress / (most.workers * alone.progress)
        text += (
            f" {most.workers:,} workers would take {predicted_time(3600 * most.hours)}"
            f"{' at ' + format(most.money, ',.2f') + ' ' + str(plan.currency) if most.money is not None else ''}: "
            f"each gives {100 * worth:.0f} % of what it would give alone."
        )
    return text


def _batch(plan: Plan) -> str:
    row, noise = plan.chosen, plan.noise
    text = f"Local batch {row.local_batch:,}, global batch {row.global_batch:,}"
    if noise is None or row.statistical_efficiency is None:
        return (
            text + f": {row.global_batch / plan.base_batch:.3g} times one worker's; one worker's local batch is kept."
        )
    where = "below" if row.global_batch < noise.value else "past"
    return text + (
        f", {where} the critical batch of about {noise.value:,.0f}: an example counts for "
        f"{100 * row.statistical_efficiency:.0f} % of one in a batch of {plan.base_batch:,}."
    )


def _rate(recipe: Recipe) -> str:
    factor = {"linear": recipe.scale, "sqrt": math.sqrt(recipe.scale)}.get(recipe.scaling, 1.0)
    text = f"Optimizer {recipe.optimizer}"
    text += f" ({recipe.reasons['optimizer']})" if "optimizer" in recipe.reasons else ""
    text += f", rate {recipe.rate * factor:.4g}"
    if factor != 1:
        text += f" = {recipe.rate:.4g} x {factor:.3g} ({recipe.scaling} scaling: {recipe.reasons.get('scaling', '')})"
    text += f", warm-up {recipe.warmup_epochs:.3g} epochs" if recipe.warmup_epochs else ", no warm-up"
    text += f", {recipe.schedule} schedule, {recipe.epochs} epochs"
    return text + (f", ghost batches of {recipe.ghost_batch}." if recipe.ghost_batch else ".")


def _warnings(plan: Plan) -> list[str]:
    """Say where more workers are slower, where they are not worth their price, and where the profile ends."""
    found = []
    alone = {row.local_batch: row for row in plan.rows if row.workers == 1}
    for row in sorted(plan.rows, key=lambda row: row.workers):
        one = alone.get(row.local_batch)
        if row.workers > 1 and one is not None and (row.best or row.scaling == "weak"):
            ratio = row.images_per_second / one.images_per_second
            if ratio < 1:
                found.append(
                    f"{row.workers:,} workers would be slower than one: {ratio:.2f}x the images/s at local batch "
                    f"{row.local_batch:,} (computing {milliseconds(row.compute_seconds)}, exchanging "
                    f"{milliseconds(row.sync_seconds)}); "
                    "take a larger local batch, a faster link, or fewer workers."
                )
    row, rows = plan.chosen, plan.best()
    cheapest = min(rows, key=cost)
    if WORTH * cost(row) > cost(cheapest):
        found.append(
            f"{things(row.workers, 'worker')} cost {cost(row) / cost(cheapest):.2g} times as much as "
            f"{cheapest.workers:,}, for {row.progress / cheapest.progress:.2g} times the progress a second."
        )
    left = plan.base_epochs * (plan.examples // row.global_batch)
    if left < FEWEST_UPDATES:
        found.append(
            f"{left:,} updates are left in {plan.base_epochs} epochs: hardly a network trains in so few; take fewer "
            "workers, a smaller batch or more epochs."
        )
    return found + sorted({text for row in plan.best() for text in row.warnings})


def _unknown(plan: Plan, profile: Profile, cluster: Cluster) -> list[str]:
    found = []
    noise = plan.noise
    if noise is None:
        tried = " (measured, but too few steps to tell it from infinity)" if profile.noise else ""
        found.append(
            f"The gradient noise scale{tried}: hours assume that every batch needs as many epochs as one worker's."
        )
    elif is_early(noise, plan.base_epochs):
        found.append(
            f"The noise scale later in the training: it was measured after {noise.step:,} updates "
            f"({noise.epochs:.2g} of {plan.base_epochs} epochs) and grows; epochs and hours of large batches are upper "
            "bounds."
        )
    if noise is not None and noise.high is None:
        found.append("The upper end of the noise scale: more steps would tell.")
    if cluster.speed is None and cluster.profile is None:
        found.append(
            f"How fast a {cluster.device or 'device'} of {cluster.name} is against the profiled {profile.device}: "
            "taken as equal. Give --speed; a faster device computes less and waits more."
        )
    largest = max(step.batch for step in profile.steps)
    found.append(f"Step times above local batch {largest:,}: none was measured.")
    if profile.largest_batch is None:
        found.append("The largest batch that fits into memory.")
    if cluster.approximate:
        found.append(f"Exact figures of {cluster.name} for {', '.join(cluster.approximate)}: those used are rough.")
    if plan.currency is None:
        found.append("The price: the cluster states none.")
    found.append("Time for evaluation, checkpoints and reading data that is not in memory: not counted.")
    return found
