"""Build the learning-rate schedule of a recipe, which training follows and the report plots. Does not import torch."""

from __future__ import annotations

from rueda.optim.batch_growth import BatchGrowth, stretch
from rueda.optim.scaling import rate_factor, warmup_factor
from rueda.optim.schedules import Schedule, assemble
from rueda.records import Recipe


def adapted(recipe: Recipe) -> Recipe:
    """Return the recipe with its regime adapted to the batch (Hoffer et al. 2017, 1705.08741).

    With ``keep_updates``, epochs, milestones and warm-up are multiplied by global batch / base batch. The warm-up is
    multiplied once in all: LEGW (:func:`warmup_epochs`) does so by itself.

    >>> adapted(Recipe(workers=4, epochs=3, warmup_epochs=1, keep_updates=True)).epochs
    12
    """
    if not recipe.keep_updates or recipe.scale <= 1:
        return recipe
    epochs, milestones = stretch(recipe.epochs, recipe.milestones, recipe.scale)
    warmup = recipe.warmup_epochs * recipe.scale / warmup_factor(recipe.scaling, recipe.scale)
    return recipe.change(epochs=epochs, milestones=milestones, warmup_epochs=warmup)


def build_schedule(recipe: Recipe, steps_per_epoch: float) -> Schedule:
    """Build the schedule, a function from the number of updates to the learning rate.

    Args:
        recipe: gives base rate, scaling rule, warm-up and schedule.
        steps_per_epoch: the number of updates in an epoch at the first batch size.

    >>> build_schedule(Recipe(workers=8, rate=0.1, scaling="linear", epochs=90, warmup_epochs=5), 100)
    from 0.1 linearly to 0.8 over 500 steps, then 0.8
    """
    return assemble(
        base_rate=recipe.rate,
        peak_rate=recipe.rate * rate_factor(recipe.scaling, recipe.scale),
        num_steps=recipe.epochs * steps_per_epoch,
        warmup=recipe.warmup,
        warmup_steps=warmup_epochs(recipe) * steps_per_epoch,
        schedule=recipe.schedule,
        milestones=tuple(epoch * steps_per_epoch for epoch in recipe.milestones),
        decay=recipe.decay,
        power=recipe.power,
        final=recipe.final_rate,
    )


def growth_of(recipe: Recipe, *, maximum: int | None = None) -> BatchGrowth | None:
    """Return how the recipe's global batch grows at its milestones, up to a maximum; None if it does not.

    >>> print(growth_of(Recipe(batch=32, growth_factor=4, milestones=(1, 2)), maximum=256))
    batch 32 -> 128 -> 256 at epochs 1, 2, rate times 1 -> 1 -> 0.5
    """
    if recipe.growth_factor is None:
        return None
    return BatchGrowth(
        base_batch=recipe.global_batch, factor=recipe.growth_factor, milestones=recipe.milestones, maximum=maximum
    )


def warmup_epochs(recipe: Recipe) -> float:
    """Return the length of the warm-up, which LEGW multiplies by the scale; it is never longer than the training."""
    return min(recipe.warmup_epochs * warmup_factor(recipe.scaling, recipe.scale), float(recipe.epochs))
