"""The choice of a recipe for some workers, without any search: published rules, each with its reason.

k is the global batch over one worker's.

==============  ==========================================================================================
rate, SGD       x k, so that one long step replaces k short ones (Goyal et al. 2017)
optimizer       SGD stays while the global batch is at most the noise scale, if the first updates bear it:
                in a network with batch norm, which is blind to the size of its weights, or where the noise
                scale is that large from the start. Otherwise LARC: the same SGD and the same rate, but no
                layer moves by more than a share of its weights (You et al. 2017). k short steps then no longer
                add up, and a rate x k alone tears a network without batch norm apart.
rate, others    x sqrt(k) for Adam and its kin, which divide by the gradient's size (Malladi et al. 2022)
warm-up         the share that Goyal et al. gave it, 5 of 90 epochs, and never more than 5 epochs: in a short
                training a longer one takes away updates that are already few
schedule        a constant rate falls to a tenth for the last fifth: with k times fewer updates, each longer,
                what the last ones leave behind is not averaged away. A cooldown at the end does what a cosine
                does (Hägele et al. 2024) and keeps the rate high where few updates must go far. Any other
                schedule is kept.
ghost batch     where the model has batch norm and the local batch grew: that of one worker, so that
                normalisation stays as noisy as it was (Hoffer et al. 2017)
==============  ==========================================================================================
"""

from __future__ import annotations

from typing import Any

from rueda.records.plan import PlanNoise
from rueda.records.recipe.recipe import Recipe

WARMUP_SHARE = 5 / 90
WARMUP_EPOCHS = 5.0
COOLDOWN = 0.2
_BY_SIZE = ("sgd", "larc")
"""optimizers whose step is the gradient times the rate"""


def choose_recipe(
    base: Recipe,
    *,
    workers: int,
    local_batch: int,
    noise: PlanNoise | None,
    examples: int,
    accumulate: int = 1,
    batch_norm: bool = False,
) -> Recipe:
    """Choose the recipe for some workers.

    Args:
        base: the recipe with which one worker trains well.
        workers: how many there will be.
        local_batch: examples that each takes at once.
        noise: the gradient noise scale, if it is known.
        examples: in the training set.
        accumulate: batches of a worker before an update.
        batch_norm: the model has batch norm, even if the recipe does not say so.

    >>> chosen = choose_recipe(Recipe(epochs=90), workers=8, local_batch=64, noise=None, examples=60_000)
    >>> chosen.global_batch, chosen.scaling, chosen.warmup_epochs, chosen.schedule
    (512, 'linear', 5.0, 'step')
    """
    batch = workers * local_batch * accumulate
    scale = batch / base.global_batch
    changes: dict[str, Any] = {"workers": workers, "batch": local_batch, "accumulate": accumulate}
    reasons = {
        "workers": "asked for",
        "batch": f"global batch {batch:,}, {_against(batch, noise)}",
        "epochs": f"as one worker; {base.epochs * (examples // batch):,} updates "
        f"instead of {base.epochs * (examples // base.global_batch):,}",
    }
    if base.global_batch != local_batch * accumulate:
        changes["base_batch"] = base.global_batch
        reasons["base_batch"] = "the rate was chosen here"
    if scale > 1:
        batch_norm = batch_norm or base.model.get("batch_norm") is True
        if base.optimizer in _BY_SIZE:
            changes["scaling"], factor = "linear", scale
            reasons["scaling"] = f"one step replaces {scale:.3g} of one worker's"
            changes["optimizer"], reasons["optimizer"] = _optimizer(base, batch, noise, batch_norm)
        else:
            changes["scaling"], factor = "sqrt", scale**0.5
            reasons["scaling"] = f"{base.optimizer} divides by the gradient's size"
            reasons["optimizer"] = "as one worker"
        reasons["rate"] = f"one worker's; {base.rate * factor:.4g} after scaling"
        changes |= _warmup(base, reasons)
        if base.schedule == "constant" and base.growth_factor is None and not base.growth_from_noise:
            changes |= {"schedule": "step", "milestones": (round((1 - COOLDOWN) * base.epochs, 3),), "decay": 0.1}
            reasons["schedule"] = "fewer and longer updates: the last ones must be short"
            reasons["milestones"] = "the last fifth"
        if batch_norm and local_batch > base.batch and base.ghost_batch is None:
            changes["ghost_batch"] = base.batch
            reasons["ghost_batch"] = "one worker's batch: normalisation stays as noisy as it was"
    chosen = base.change(**changes)
    return chosen.change(reasons={**chosen.reasons, **reasons})


def _optimizer(base: Recipe, batch: int, noise: PlanNoise | None, batch_norm: bool) -> tuple[str, str]:
    if base.optimizer == "larc":
        return "larc", "as one worker"
    limited = "sgd in which no layer moves by more than a share of its weights"
    if noise is None:
        return "larc", f"noise scale not known: {limited}"
    if batch > noise.value:
        return "larc", f"past the noise scale {noise.value:,.0f}: {limited}"
    if batch_norm or batch <= noise.first:
        return "sgd", f"global batch {batch:,} is below the noise scale {noise.value:,.0f}: small steps add up"
    return "larc", f"noise scale {noise.first:,.0f} at the start, and no batch norm: {limited}"


def _warmup(base: Recipe, reasons: dict[str, str]) -> dict[str, Any]:
    if base.schedule == "one-cycle":  # it warms up by itself
        return {}
    epochs = max(base.warmup_epochs, round(min(WARMUP_EPOCHS, WARMUP_SHARE * base.epochs), 3))
    reasons["warmup_epochs"] = "5 of 90 epochs, as published"
    return {"warmup_epochs": epochs}


def _against(batch: int, noise: PlanNoise | None) -> str:
    if noise is None:
        return "noise scale not measured"
    return f"noise scale {noise.value:,.0f} at step {noise.step:,}"
