"""Write in words what a plan makes of failures, and put the chosen checkpoint interval into its recipe."""

from __future__ import annotations

from rueda.plan.cluster import Cluster
from rueda.plan.failures import FailureModel
from rueda.records.failure_plan import USES, FailurePlan
from rueda.records.recipe.recipe import Recipe
from rueda.terminal.numbers import digits, percent, predicted_time, things


def with_checkpoints(recipe: Recipe, plan: FailurePlan) -> Recipe:
    """Return the recipe with the chosen interval and its reason, unless it has one or its epochs are shorter."""
    if recipe.checkpoint_minutes is not None or recipe.checkpoint_every is not None or _epochs_suffice(recipe, plan):
        return recipe
    minutes = round(plan.interval_seconds / 60, 4)
    return recipe.change(checkpoint_minutes=minutes, reasons={"checkpoint_minutes": plan.reason})


def advice_on_failures(plan: FailurePlan, recipe: Recipe) -> list[str]:
    """Return the sentences of a plan about failures; ``recipe`` is that of :func:`with_checkpoints`."""
    job, row = plan.job, plan.chosen
    mtbf = f"mean time between failures of each {job.mtbf_seconds / 3600:,.0f} h ({plan.source})"
    often = f"an interruption every {predicted_time(job.job_mtbf_seconds)}, {digits(plan.expected, 2)} in"
    low, high = (predicted_time(seconds) for seconds in plan.flat)
    text = f"Failures of {things(job.nodes, 'node')}, {mtbf}: {often} {predicted_time(3600 * plan.hours)}. "
    text += f"{_interval(plan, recipe)} "
    text += f"From {low} to {high} the goodput is within half a point of the best."
    uses = [f"{percent(getattr(row, name))} {what}" for name, what in USES.items() if getattr(row, name) >= 5e-4]
    spares = f"{things(plan.spares, 'spare node')} ({things(plan.spares * plan.workers_per_node, 'worker')})"
    policy = "the training goes on with fewer nodes" if plan.elastic else "it waits for a repair"
    useful = f"{percent(row.goodput, row.standard_error)} of the time is useful"
    return [
        text,
        f"With {spares}, and where these do not suffice {policy}, {useful}{'; the rest: ' * bool(uses)}"
        f"{', '.join(uses)}.",
    ]


def warnings_on_failures(plan: FailurePlan) -> list[str]:
    """Return a warning if failures leave less than half of the time."""
    if plan.chosen.goodput >= 0.5:
        return []
    return [f"failures leave {percent(plan.chosen.goodput)} of the time; use fewer nodes, or recover and save faster."]


def assumed_of_failures(plan: FailurePlan, cluster: Cluster) -> list[str]:
    """Return what a plan assumes of the failures, for its list of unknowns."""
    model, job = cluster.failures or FailureModel(), plan.job
    parts = []
    if model.mtbf_hours is None:
        parts.append(f"a node fails every {job.mtbf_seconds / 3600:,.0f} h, as on RSC-1")
    if model.checkpoint_seconds is None:
        parts.append(f"a checkpoint takes {predicted_time(job.stall_seconds)} (its bytes at 1 GB/s, at least 1 s)")
    if model.detect_seconds is None:
        parts.append(f"a failure is noticed after {predicted_time(job.detect_seconds)}")
    if model.recover_seconds is None:
        parts.append(f"recovery takes {predicted_time(job.recover_seconds)}")
    if model.repair_hours is None:
        parts.append(f"a repair takes {predicted_time(job.repair_seconds)}")
    if not parts:
        return []
    return [f"Failures on {cluster.name}. Assumed: {', '.join(parts)}; give your own in [failures] of a cluster file."]


def _epochs_suffice(recipe: Recipe, plan: FailurePlan) -> bool:
    """Return whether the checkpoint at the end of each epoch comes at least as often as the chosen interval."""
    return 3600 * plan.hours / recipe.epochs <= plan.interval_seconds


def _interval(plan: FailurePlan, recipe: Recipe) -> str:
    every = predicted_time(plan.interval_seconds)
    if recipe.reasons.get("checkpoint_minutes") == plan.reason:
        return f"Save every {every} ({plan.reason})."
    if _epochs_suffice(recipe, plan):
        kept = f"an epoch of {predicted_time(3600 * plan.hours / recipe.epochs)} ends with one anyway"
    else:
        kept = "the recipe keeps its own"
    return f"The best interval between checkpoints is {every} ({plan.reason}); {kept}."
