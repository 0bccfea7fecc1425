"""What the recipe says about time and size: how long to train, and how large each epoch's batch is."""

from __future__ import annotations

from rueda.optim.batch_growth import BatchGrowth, Realisation, realise, stretch
from rueda.optim.noise import sigma_for
from rueda.optim.scaling import rate_factor
from rueda.records import Recipe


def adapted(recipe: Recipe) -> Recipe:
    """Apply regime adaptation: with ``keep_updates``, epochs, milestones and warm-up x (global batch / base batch).

    >>> adapted(Recipe(workers=4, epochs=3, warmup_epochs=1, keep_updates=True)).epochs
    12
    """
    if not recipe.keep_updates or recipe.scale <= 1:
        return recipe
    epochs, milestones = stretch(recipe.epochs, recipe.milestones, recipe.scale)
    return recipe.change(epochs=epochs, milestones=milestones, warmup_epochs=recipe.warmup_epochs * recipe.scale)


def batch_at(recipe: Recipe, epoch: int, num_examples: int) -> Realisation:
    """Give what a worker takes for one update in an epoch: how many examples at once, and how many times.

    Without growth that is ``batch`` and ``accumulate``. With it, the global batch grows at each milestone, to a tenth
    of the examples unless ``largest_batch`` says otherwise; a worker takes at most ``largest_local_batch`` at once, by
    default the ``batch`` that is known to fit, and accumulates the rest.

    >>> recipe = Recipe(workers=2, batch=32, epochs=3, growth_factor=4, milestones=(1, 2))
    >>> [batch_at(recipe, epoch, 50_000) for epoch in (0, 1)]
    [Realisation(local_batch=32, accumulation=1), Realisation(local_batch=32, accumulation=4)]
    """
    if recipe.growth_factor is None:
        return Realisation(recipe.batch, recipe.accumulate)
    growth = BatchGrowth(
        base_batch=recipe.global_batch,
        factor=recipe.growth_factor,
        milestones=recipe.milestones,
        maximum=recipe.largest_batch or max(recipe.global_batch, num_examples // 10),
    )
    return realise(growth(epoch), recipe.workers, recipe.largest_local_batch or recipe.batch)


def noise_sigma(recipe: Recipe, global_batch: int) -> float:
    """Give the sigma of the multiplicative gradient noise at a global batch; ``gradient_noise`` scales it.

    >>> round(noise_sigma(Recipe(workers=8, gradient_noise=1.0), 8 * 64), 3)
    2.646
    """
    if recipe.gradient_noise == 0:
        return 0.0
    factor = rate_factor(recipe.scaling, recipe.scale)
    return recipe.gradient_noise * sigma_for(global_batch, recipe.base_batch or recipe.local_batch, rate_factor=factor)
