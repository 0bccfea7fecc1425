"""Choose a recipe for N workers by published rules, without search; each choice carries its reason.

k is the global batch divided by the global batch of one worker.

==============  ==========================================================================================
rate, SGD       x k, so that one long step replaces k short ones (Goyal et al. 2017)
optimizer       SGD is kept while the global batch is at most the noise scale and the first updates stay stable:
                if the network has batch norm, whose output does not depend on the scale of the weights, or if
                the noise scale is that large from the start. Otherwise LARC: SGD at the same rate, but the
                update of each layer is at most a fraction of its weights (You et al. 2017). Above the noise
                scale k short steps no longer add up to a long one, and a network without batch norm diverges
                at a rate x k.
rate, others    x sqrt(k) for Adam and its variants, which divide by the gradient's size (Malladi et al. 2022)
warm-up         5 of 90 epochs, the share that Goyal et al. used, and at most 5 epochs: in a short training a
                longer warm-up would waste updates of which there are few
schedule        a constant rate is divided by ten for the last fifth: there are k times fewer and longer
                updates, and short ones at the end average their noise away. Such a cooldown works as well as
                a cosine (Hägele et al. 2024) and keeps the rate high before. Other schedules are kept.
ghost batch     if the model has batch norm and the local batch grows: the batch of one worker, so that the
                noise of the normalisation stays the same (Hoffer et al. 2017)
==============  ==========================================================================================
"""

from __future__ import annotations

from typing import Any

from rueda.records.plan import PlanNoise
from rueda.records.recipe.recipe import Recipe

WARMUP_SHARE = 5 / 90
WARMUP_EPOCHS = 5.0
COOLDOWN = 0.2
_LINEAR = ("sgd", "larc")
"""optimizers whose step is the gradient times the rate"""


def choose_recipe(
    base: Recipe,
    *,
    workers: int,
    local_batch: int,
    noise: PlanNoise | None,
    examples: int,
    batch_norm: bool = False,
) -> Recipe:
    """Choose the recipe for a number of workers.

    Args:
        base: the recipe with which one worker trains well.
        workers: the number of workers.
        local_batch: examples in one forward pass of one worker.
        noise: the gradient noise scale; None if it is not known.
        examples: the size of the training set.
        batch_norm: the model has batch norm even if the recipe does not say so.

    >>> chosen = choose_recipe(Recipe(epochs=90), workers=8, local_batch=64, noise=None, examples=60_000)
    >>> chosen.global_batch, chosen.scaling, chosen.warmup_epochs, chosen.schedule
    (512, 'linear', 5.0, 'step')
    """
    batch = workers * local_batch
    scale = batch / base.global_batch
    changes: dict[str, Any] = {"workers": workers, "batch": local_batch, "accumulate": 1}
    reasons = {
        "workers": "asked for",
        "batch": f"global batch {batch:,}, {_noise_text(noise)}",
        "epochs": f"as for one worker; {base.epochs * (examples // batch):,} updates "
        f"instead of {base.epochs * (examples // base.global_batch):,}",
    }
    if base.global_batch != local_batch:
        changes["base_batch"] = base.global_batch
        reasons["base_batch"] = "the batch that the rate was chosen for"
    if scale > 1:
        batch_norm = batch_norm or base.model.get("batch_norm") is True
        if base.optimizer in _LINEAR:
            changes["scaling"], factor = "linear", scale
            reasons["scaling"] = f"one step replaces {scale:.3g} steps of one worker"
            changes["optimizer"], reasons["optimizer"] = _optimizer(base, batch, noise, batch_norm)
        else:
            changes["scaling"], factor = "sqrt", scale**0.5
            reasons["scaling"] = f"{base.optimizer} divides by the gradient's size"
            reasons["optimizer"] = "as for one worker"
        reasons["rate"] = f"that of one worker; {base.rate * factor:.4g} after scaling"
        changes |= _warmup(base, reasons)
        if base.schedule == "constant" and base.growth_factor is None and not base.growth_from_noise:
            changes |= {"schedule": "step", "milestones": (round((1 - COOLDOWN) * base.epochs, 3),), "decay": 0.1}
            reasons["schedule"] = "there are fewer and longer updates: short ones at the end average their noise away"
            reasons["milestones"] = "the last fifth"
        if batch_norm and local_batch > base.batch and base.ghost_batch is None:
            changes["ghost_batch"] = base.batch
            reasons["ghost_batch"] = "the batch of one worker: the noise of the normalisation stays the same"
    chosen = base.change(**changes)
    return chosen.change(reasons={**chosen.reasons, **reasons})


def _optimizer(base: Recipe, batch: int, noise: PlanNoise | None, batch_norm: bool) -> tuple[str, str]:
    if base.optimizer == "larc":
        return "larc", "as for one worker"
    limited = "sgd that limits the update of each layer to a fraction of its weights"
    if noise is None:
        return "larc", f"noise scale not known: {limited}"
    if batch > noise.value:
        return "larc", f"above the noise scale {noise.value:,.0f}: {limited}"
    if batch_norm or batch <= noise.first:
        return "sgd", f"global batch {batch:,} is below the noise scale {noise.value:,.0f}: small steps add up"
    return "larc", f"noise scale {noise.first:,.0f} at the start, and no batch norm: {limited}"


def _warmup(base: Recipe, reasons: dict[str, str]) -> dict[str, Any]:
    if base.schedule == "one-cycle":  # has its own warm-up
        return {}
    epochs = max(base.warmup_epochs, round(min(WARMUP_EPOCHS, WARMUP_SHARE * base.epochs), 3))
    reasons["warmup_epochs"] = "5 of 90 epochs, as in Goyal et al. 2017"
    return {"warmup_epochs": epochs}


def _noise_text(noise: PlanNoise | None) -> str:
    if noise is None:
        return "noise scale not measured"
    return f"noise scale {noise.value:,.0f} at step {noise.step:,}"
