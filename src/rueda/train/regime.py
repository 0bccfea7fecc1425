"""The batch size of each epoch, its growth, and the gradient noise that belongs to a batch size."""

from __future__ import annotations

from rueda.optim.batch_growth import BatchGrowth, BatchSplit, from_noise_scale, split_batch
from rueda.optim.scaling import rate_factor
from rueda.records import Recipe
from rueda.records.profile import NoiseScale


def batch_at(recipe: Recipe, epoch: int, num_examples: int, grown_to: int = 0) -> BatchSplit:
    """Return the micro-batch and the gradient accumulation of a worker's updates in an epoch.

    Without growth these are ``batch`` and ``accumulate``. With it, the global batch grows at each milestone, up to
    ``largest_batch`` or a tenth of the examples. The micro-batch is at most ``largest_local_batch``, by default
    ``batch``, which is known to fit in memory; larger batches use gradient accumulation. If the batch follows the
    noise scale, ``grown_to`` is the global batch reached so far.

    >>> recipe = Recipe(workers=2, batch=32, epochs=3, growth_factor=4, milestones=(1, 2))
    >>> [batch_at(recipe, epoch, 50_000) for epoch in (0, 1)]
    [BatchSplit(local_batch=32, accumulation=1), BatchSplit(local_batch=32, accumulation=4)]
    """
    fits = recipe.largest_local_batch or recipe.batch
    if recipe.growth_from_noise and grown_to:
        return split_batch(grown_to, recipe.workers, fits)
    if recipe.growth_factor is None:
        return BatchSplit(recipe.batch, recipe.accumulate)
    growth = BatchGrowth(
        base_batch=recipe.global_batch,
        factor=recipe.growth_factor,
        milestones=recipe.milestones,
        maximum=_largest_batch(recipe, num_examples),
    )
    return split_batch(growth(epoch), recipe.workers, fits)


def at_fixed_batch(recipe: Recipe, batch: int) -> Recipe:
    """Return the recipe with a constant local batch and no noise-scale measurement, for measuring the time of a step.

    >>> growing = Recipe(batch=32, epochs=3, growth_factor=4, milestones=(1, 2))
    >>> at_fixed_batch(growing, 8).batch, at_fixed_batch(growing, 8).growth_factor
    (8, None)
    """
    return recipe.change(
        batch=batch, growth_factor=None, growth_from_noise=False, noise_scale_every=None, noise_scale_groups=False
    )


def grown_batch(recipe: Recipe, current_batch: int, noise: NoiseScale, num_examples: int) -> int:
    """Return the next global batch, a multiple of workers times ``batch``, if the batch follows the noise scale.

    It follows the lower end of the confidence interval, so an uncertain measurement does not change the batch.

    >>> noise = NoiseScale(value=900.0, low=700.0, high=1300.0, variance=900.0, square=1.0, step=400, steps=200)
    >>> recipe = Recipe(workers=2, batch=64, noise_scale_every=1, growth_from_noise=True)
    >>> [grown_batch(recipe, current, noise, 60_000) for current in (128, 512, 768)]
    [256, 640, 768]
    """
    return from_noise_scale(
        noise.low,
        current_batch=current_batch,
        multiple=recipe.workers * recipe.batch,
        maximum=_largest_batch(recipe, num_examples),
    )


def _largest_batch(recipe: Recipe, num_examples: int) -> int:
    """Return the batch at which growth stops: the recipe's, or a tenth of the examples."""
    return recipe.largest_batch or max(recipe.global_batch, num_examples // 10)


def noise_sigma(recipe: Recipe, global_batch: int) -> float:
    """Return the standard deviation of the multiplicative gradient noise at a global batch, times ``gradient_noise``.

    >>> round(noise_sigma(Recipe(workers=8, gradient_noise=1.0), 8 * 64), 3)
    2.646
    """
    if recipe.gradient_noise == 0:
        return 0.0
    from rueda.optim.noise import sigma_for  # loads torch

    factor = rate_factor(recipe.scaling, recipe.scale)
    return recipe.gradient_noise * sigma_for(global_batch, recipe.base_batch or recipe.local_batch, rate_factor=factor)
