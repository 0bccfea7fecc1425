"""Choose a recipe for N workers by published rules, without search; each choice carries its reason.

The rules and their references are in :mod:`rueda.plan.rules`.
"""

from __future__ import annotations

from typing import Any

from rueda.optim.batch_growth import BatchGrowth, num_updates
from rueda.plan.noise import statistical_efficiency
from rueda.plan.rules import (
    ADAM,
    COOLDOWN,
    epochs_needed,
    rate_correction,
    rate_scaling,
    scaled_betas,
    warmup_epochs,
)
from rueda.records.plan import PlanNoise
from rueda.records.recipe.recipe import Recipe


def choose_recipe(
    base: Recipe,
    *,
    workers: int,
    local_batch: int,
    noise: PlanNoise | None,
    examples: int,
    batch_norm: bool | None = None,
    growth: BatchGrowth | None = None,
    growth_epochs: int | None = None,
) -> Recipe:
    """Choose the recipe for a number of workers.

    Args:
        base: the recipe with which one worker trains well.
        workers: the number of workers.
        local_batch: examples in one forward pass of one worker.
        noise: the gradient noise scale; None if it is not known.
        examples: the size of the training set.
        batch_norm: whether the model has batch norm; None: as the recipe says, or else not known.
        growth: how the batch grows during the training; None: it stays.
        growth_epochs: the epochs of that training, in which the batches together make the progress of one worker; None:
            as many as the first batch needs.

    >>> chosen = choose_recipe(Recipe(epochs=90), workers=8, local_batch=64, noise=None, examples=60_000)
    >>> chosen.global_batch, chosen.scaling, chosen.warmup_epochs, chosen.schedule
    (512, 'linear', 5.0, 'step')
    """
    batch = workers * local_batch
    scale = batch / base.global_batch
    worth = None if noise is None else statistical_efficiency(batch, base.global_batch, noise.value)
    epochs = growth_epochs or epochs_needed(base.epochs, worth)
    changes: dict[str, Any] = {"workers": workers, "batch": local_batch, "accumulate": 1, "epochs": epochs}
    reasons = {
        "workers": "asked for",
        "batch": f"global batch {batch:,}, {_noise_text(noise)}",
        "epochs": f"{_epochs_text(base, worth, growth_epochs)}; "
        f"{num_updates(growth or batch, epochs, num_examples=examples):,} updates "
        f"instead of {num_updates(base.global_batch, base.epochs, num_examples=examples):,}",
    }
    if base.global_batch != local_batch:
        changes["base_batch"] = base.global_batch
        reasons["base_batch"] = "the batch that the rate was chosen for"
    batch_norm = knows_batch_norm(base) if batch_norm is None else batch_norm
    if scale > 1:
        changes |= _rate(base, batch, worth, noise, batch_norm, reasons)
    if workers > 1 or scale > 1:  # one worker with a larger batch has the same long updates as many
        changes |= _schedule(base, epochs, growth, reasons, warm_up=scale > 1)
        if batch_norm:
            most = growth(epochs) / base.global_batch if growth is not None else scale
            changes |= _normalisation(base, local_batch, most, reasons)
    chosen = base.change(**changes)
    return chosen.change(reasons={**chosen.reasons, **reasons})


def with_cooldown(recipe: Recipe) -> Recipe:
    """Return a recipe of a constant rate with the cooldown that a plan adds; others as they are.

    >>> with_cooldown(Recipe(epochs=10)).milestones, with_cooldown(Recipe(schedule="cosine")).schedule
    ((8.0,), 'cosine')
    """
    if recipe.schedule != "constant" or recipe.growth_factor is not None or recipe.growth_from_noise:
        return recipe
    return recipe.change(schedule="step", milestones=(round((1 - COOLDOWN) * recipe.epochs, 3),), decay=0.1)


def knows_batch_norm(recipe: Recipe) -> bool | None:
    """Return True if a recipe implies that the model has batch norm; else None: it does not say.

    >>> knows_batch_norm(Recipe(ghost_batch=32)), knows_batch_norm(Recipe())
    (True, None)
    """
    said = recipe.model.get("batch_norm") is True or recipe.ghost_batch is not None or recipe.sync_batch_norm
    return said or None


def _rate(
    base: Recipe, batch: int, worth: float | None, noise: PlanNoise | None, batch_norm: bool | None,
    reasons: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Choose rate, scaling rule and optimizer."""
    scale, scaling = batch / base.global_batch, rate_scaling(base.optimizer)
    correction = rate_correction(base.optimizer, worth)
    rate = float(f"{base.rate * correction:.4g}")
    factor = scale if scaling == "linear" else scale**0.5
    if scaling == "linear":
        reasons["scaling"] = f"one step replaces {scale * (worth or 1):.3g} steps of one worker"
        optimizer, reasons["optimizer"] = _optimizer(base, batch, noise, batch_norm)
    else:
        optimizer = base.optimizer
        reasons["scaling"] = f"{base.optimizer} divides by the gradient's size"
        reasons["optimizer"] = "as for one worker"
    reasons["rate"] = f"that of one worker; {rate * factor:.4g} after scaling"
    if correction < 1:
        reasons["rate"] = (
            f"{base.rate:g} of one worker x {correction:.3g}, since an example contributes {100 * (worth or 1):.0f} % "
            f"in this batch; {rate * factor:.4g} after scaling"
        )
    gain = scale * min(worth or 1.0, 1.0)
    if base.optimizer in ADAM:
        reasons["betas"] = f"the moving averages forget {gain:.3g} times as fast in updates, equally fast in examples"
    return {
        "rate": rate, "scaling": scaling, "optimizer": optimizer, "keep_updates": False,
        "betas": scaled_betas(base.optimizer, base.betas, gain),
    }  # fmt: skip


def _optimizer(base: Recipe, batch: int, noise: PlanNoise | None, batch_norm: bool | None) -> tuple[str, str]:
    if base.optimizer == "larc":
        return "larc", "as for one worker"
    limited = "sgd that limits the update of each layer to a fraction of its weights"
    if noise is None:
        return "larc", f"noise scale not known: {limited}"
    if batch <= noise.first:
        return "sgd", f"global batch {batch:,} is below the noise scale {noise.first:,.0f}: small steps add up"
    if batch_norm:
        return "sgd", "batch norm keeps the first updates stable"
    known = "no batch norm" if batch_norm is False else "batch norm is not known of"
    return "larc", f"noise scale {noise.first:,.0f} at the start, and {known}: {limited}"


def _schedule(
    base: Recipe, epochs: int, growth: BatchGrowth | None, reasons: dict[str, str], *, warm_up: bool
) -> dict[str, Any]:
    """Choose warm-up, cooldown or growth; the milestones of one worker's own schedule move with the epochs."""
    changes: dict[str, Any] = {}
    if warm_up and base.schedule != "one-cycle":  # which has its own warm-up
        changes["warmup_epochs"] = max(base.warmup_epochs, warmup_epochs(epochs))
        reasons["warmup_epochs"] = "5 of 90 epochs, as in Goyal et al. 2017"
    if growth is not None:
        quarters = "half and three quarters" if len(growth.milestones) == 2 else "a quarter, half and three quarters"
        reasons["milestones"] = f"{quarters} of the epochs"
        reasons["growth_factor"] = f"the batch grows to {growth(epochs):,} instead of a falling rate"
        reasons["largest_local_batch"] = "the batch of one worker"
        return changes | {
            "growth_factor": float(growth.factor), "milestones": tuple(map(float, growth.milestones)),
            "largest_local_batch": base.local_batch, "largest_batch": None,
        }  # fmt: skip
    cooled = with_cooldown(base.change(epochs=epochs))
    if cooled.schedule != base.schedule:
        reasons["schedule"] = "short updates at the end average the noise of long ones away"
        reasons["milestones"] = "the last fifth"
        return changes | {"schedule": "step", "milestones": cooled.milestones, "decay": cooled.decay}
    if base.milestones and epochs != base.epochs:
        changes["milestones"] = tuple(round(one * epochs / base.epochs, 3) for one in base.milestones)
    return changes


def _normalisation(base: Recipe, local_batch: int, scale: float, reasons: dict[str, str]) -> dict[str, Any]:
    """Choose over how many examples batch norm computes its statistics; ``scale`` is that of the largest batch."""
    changes: dict[str, Any] = {}
    if base.recalibrate == "auto" and scale > 1:
        changes["recalibrate"] = "always"
        reasons["recalibrate"] = "running averages lag behind few and long updates"
    own = base.ghost_batch or base.batch
    if local_batch < own and base.noise_scale_every is None:
        changes |= {"sync_batch_norm": True, "ghost_batch": None}
        reasons["sync_batch_norm"] = f"{local_batch} examples give noisier statistics than the {own} of one worker"
    elif base.ghost_batch is not None and base.ghost_batch > local_batch:
        changes["ghost_batch"] = None
    elif local_batch > base.batch and base.ghost_batch is None and not base.sync_batch_norm:
        changes["ghost_batch"] = base.batch
        reasons["ghost_batch"] = "the batch of one worker: the noise of the normalisation stays the same"
    return changes


def _epochs_text(base: Recipe, worth: float | None, growth_epochs: int | None) -> str:
    if growth_epochs is not None and growth_epochs > base.epochs:
        return (
            f"{base.epochs} of one worker / {base.epochs / growth_epochs:.3g}, what an example contributes on average "
            "while the batch grows"
        )
    if growth_epochs is not None or worth is None or worth >= 1:
        return "as for one worker"
    return f"{base.epochs} of one worker / {worth:.3g}, what an example contributes in this batch"


def _noise_text(noise: PlanNoise | None) -> str:
    if noise is None:
        return "noise scale not measured"
    low = "" if noise.low is None else f" (at least {noise.low:,.0f})"
    return f"noise scale {noise.value:,.0f}{low} in the first {noise.step:,} updates"
