"""From the recipe's words to the schedule of the rate, in updates."""

from __future__ import annotations

from rueda.optim.scaling import rate_factor, warmup_factor
from rueda.optim.schedules import Schedule, assemble
from rueda.records import Recipe


def build_schedule(recipe: Recipe, steps_per_epoch: float) -> Schedule:
    """Build the schedule: from clock (in updates) to rate.

    Args:
        recipe: says base rate, scaling rule, warm-up and what follows.
        steps_per_epoch: how far the clock goes in an epoch.

    >>> build_schedule(Recipe(workers=8, rate=0.1, scaling="linear", epochs=90, warmup_epochs=5), 100)
    from 0.1 evenly to 0.8 over 500 steps, then 0.8
    """
    return assemble(
        base_rate=recipe.rate,
        peak_rate=recipe.rate * rate_factor(recipe.scaling, recipe.scale),
        num_steps=recipe.epochs * steps_per_epoch,
        warmup=recipe.warmup,
        warmup_steps=_warmup_epochs(recipe) * steps_per_epoch,
        schedule=recipe.schedule,
        milestones=tuple(epoch * steps_per_epoch for epoch in recipe.milestones),
        decay=recipe.decay,
        power=recipe.power,
        final=recipe.final_rate,
    )


def _warmup_epochs(recipe: Recipe) -> float:
    """LEGW stretches the warm-up with the scale; no rule makes it longer than the training."""
    return min(recipe.warmup_epochs * warmup_factor(recipe.scaling, recipe.scale), float(recipe.epochs))
