"""The batch size of each epoch, its growth, and the gradient noise that belongs to a batch size."""

from __future__ import annotations

from rueda.optim.batch_growth import BatchSplit, from_noise_scale, split_batch
from rueda.optim.rates import growth_of
from rueda.optim.scaling import rate_factor
from rueda.records import Recipe
from rueda.records.profile import NoiseScale


def batch_at(recipe: Recipe, epoch: int, num_examples: int, grown_to: int = 0) -> BatchSplit:
    """Return the micro-batch and the gradient accumulation of a worker's updates in an epoch.

    Without growth these are ``batch`` and ``accumulate``. With it, the global batch grows at each milestone, up to
    ``largest_batch`` or a tenth of the examples; :func:`growth_rate_factor` is what the learning rate does from there
    on. The micro-batch is at most ``largest_local_batch``, by default ``batch``, which is known to fit in memory;
    larger batches use gradient accumulation. If the batch follows the noise scale, ``grown_to`` is the global batch
    that it asks for.

    >>> recipe = Recipe(workers=2, batch=32, epochs=3, growth_factor=4, milestones=(1, 2))
    >>> [batch_at(recipe, epoch, 50_000) for epoch in (0, 1)]
    [BatchSplit(local_batch=32, accumulation=1), BatchSplit(local_batch=32, accumulation=4)]
    """
    fits = recipe.largest_local_batch or recipe.batch
    if recipe.growth_from_noise and grown_to:
        largest = max(recipe.global_batch, _largest_batch(recipe, num_examples))
        return split_batch(min(grown_to, largest), recipe.workers, fits)
    growth = growth_of(recipe, maximum=_largest_batch(recipe, num_examples))
    if growth is None:
        return BatchSplit(recipe.batch, recipe.accumulate)
    return split_batch(growth(epoch), recipe.workers, fits)


def micro_batch_of(local_batch: int, fits: int) -> int:
    """Return the examples of a forward pass of a worker whose share of the global batch is not that of the recipe.

    The share is divided into as few passes as fit in memory, of sizes as equal as can be. All workers get the same
    number, that of the largest share, so that those with an example less make as many passes.

    Args:
        local_batch: the largest share of a worker.
        fits: the most examples of a pass.

    >>> [micro_batch_of(local_batch, 16) for local_batch in (11, 16, 24, 48)]
    [11, 16, 12, 16]
    """
    return -(-local_batch // -(-local_batch // fits))


def growth_rate_factor(recipe: Recipe, epoch: int, global_batch: int, grown_to: int = 0) -> float:
    """Return the factor of the learning rate that makes up for growth which the batch could not follow.

    The noise of SGD is proportional to rate / batch (Smith et al. 2017, 1711.00489). Where the batch should grow by f
    and can only grow by g, at its largest size or at the next one that can be divided among the workers, the rate is
    divided by f / g. Like the growth itself, this is meant for SGD; other optimizers are treated alike.

    Args:
        recipe: how the batch grows.
        epoch: the epoch, counted from 0.
        global_batch: the global batch that is used.
        grown_to: the global batch that the noise scale asks for; 0 if it was not measured yet.

    >>> recipe = Recipe(batch=128, epochs=8, growth_factor=5, milestones=(2, 4, 6), largest_batch=1280)
    >>> splits = [batch_at(recipe, epoch, 50_000) for epoch in (0, 2, 4, 6)]
    >>> batches = [split.local_batch * split.accumulation for split in splits]
    >>> [growth_rate_factor(recipe, epoch, batch) for epoch, batch in zip((0, 2, 4, 6), batches)]
    [1.0, 1.0, 0.4, 0.08]
    """
    if recipe.growth_from_noise and grown_to:
        return global_batch / grown_to
    growth = growth_of(recipe)
    return 1.0 if growth is None else growth.rate_factor(epoch, global_batch)


def at_fixed_batch(recipe: Recipe, batch: int) -> Recipe:
    """Return the recipe with a constant local batch and no noise-scale measurement, for measuring the time of a step.

    >>> growing = Recipe(batch=32, epochs=3, growth_factor=4, milestones=(1, 2))
    >>> at_fixed_batch(growing, 8).batch, at_fixed_batch(growing, 8).growth_factor
    (8, None)
    """
    return recipe.change(
        batch=batch, growth_factor=None, growth_from_noise=False, noise_scale_every=None, noise_scale_groups=False
    )


def grown_batch(recipe: Recipe, current_batch: int, noise: NoiseScale) -> int:
    """Return the global batch that the noise scale asks for next, a multiple of workers times ``batch``.

    It follows the lower end of the confidence interval, so an uncertain measurement does not change the batch. It may
    be larger than the largest batch: :func:`batch_at` limits it, and :func:`growth_rate_factor` makes up for that.

    >>> noise = NoiseScale(value=900.0, low=700.0, high=1300.0, variance=900.0, square=1.0, step=400, steps=200)
    >>> recipe = Recipe(workers=2, batch=64, noise_scale_every=1, growth_from_noise=True)
    >>> [grown_batch(recipe, current, noise) for current in (128, 512, 768)]
    [256, 640, 768]
    """
    return from_noise_scale(noise.low, current_batch=current_batch, multiple=recipe.workers * recipe.batch)


def _largest_batch(recipe: Recipe, num_examples: int) -> int:
    """Return the batch at which growth stops, for all workers: the recipe's, or a tenth of the examples.

    It is never more than the examples, of which an epoch would otherwise make no update.
    """
    largest = max(recipe.global_batch, num_examples // 10) if recipe.largest_batch is None else recipe.largest_batch
    if largest > num_examples:
        largest = max(recipe.global_batch, num_examples)
    return largest // recipe.workers * recipe.workers


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
