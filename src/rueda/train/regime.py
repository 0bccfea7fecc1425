"""What the recipe says about time and size: how long to train, and how large each epoch's batch is."""

from __future__ import annotations

from rueda.optim.batch_growth import BatchGrowth, Realisation, from_noise_scale, realise, stretch
from rueda.optim.scaling import rate_factor
from rueda.records import Recipe
from rueda.records.profile import NoiseScale


def adapted(recipe: Recipe) -> Recipe:
    """Apply regime adaptation: with ``keep_updates``, epochs, milestones and warm-up x (global batch / base batch).

    >>> adapted(Recipe(workers=4, epochs=3, warmup_epochs=1, keep_updates=True)).epochs
    12
    """
    if not recipe.keep_updates or recipe.scale <= 1:
        return recipe
    epochs, milestones = stretch(recipe.epochs, recipe.milestones, recipe.scale)
    return recipe.change(epochs=epochs, milestones=milestones, warmup_epochs=recipe.warmup_epochs * recipe.scale)


def batch_at(recipe: Recipe, epoch: int, num_examples: int, grown_to: int = 0) -> Realisation:
    """Give what a worker takes for one update in an epoch: how many examples at once, and how many times.

    Without growth that is ``batch`` and ``accumulate``. With it, the global batch grows at each milestone, to a tenth
    of the examples unless ``largest_batch`` says otherwise; a worker takes at most ``largest_local_batch`` at once, by
    default the ``batch`` that is known to fit, and accumulates the rest. Where it grows by the noise scale,
    ``grown_to`` is the global batch that it has come to.

    >>> recipe = Recipe(workers=2, batch=32, epochs=3, growth_factor=4, milestones=(1, 2))
    >>> [batch_at(recipe, epoch, 50_000) for epoch in (0, 1)]
    [Realisation(local_batch=32, accumulation=1), Realisation(local_batch=32, accumulation=4)]
    """
    fits = recipe.largest_local_batch or recipe.batch
    if recipe.growth_from_noise and grown_to:
        return realise(grown_to, recipe.workers, fits)
    if recipe.growth_factor is None:
        return Realisation(recipe.batch, recipe.accumulate)
    growth = BatchGrowth(
        base_batch=recipe.global_batch,
        factor=recipe.growth_factor,
        milestones=recipe.milestones,
        maximum=_largest_batch(recipe, num_examples),
    )
    return realise(growth(epoch), recipe.workers, fits)


def at_fixed_batch(recipe: Recipe, batch: int) -> Recipe:
    """Give the recipe with one local batch all along, and without the noise scale: for measuring what a step costs.

    >>> growing = Recipe(batch=32, epochs=3, growth_factor=4, milestones=(1, 2))
    >>> at_fixed_batch(growing, 8).batch, at_fixed_batch(growing, 8).growth_factor
    (8, None)
    """
    return recipe.change(
        batch=batch, growth_factor=None, growth_from_noise=False, noise_scale_every=None, noise_scale_groups=False
    )


def grown_batch(recipe: Recipe, current_batch: int, noise: NoiseScale, num_examples: int) -> int:
    """Give the next global batch where it follows the noise scale, in whole batches of all workers.

    It follows the lower end of the interval, up to which the noise scale is certain: a measurement that says little
    moves nothing.

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
    """Say where growth stops: a tenth of the examples, unless the recipe says otherwise."""
    return recipe.largest_batch or max(recipe.global_batch, num_examples // 10)


def noise_sigma(recipe: Recipe, global_batch: int) -> float:
    """Give the sigma of the multiplicative gradient noise at a global batch; ``gradient_noise`` scales it.

    >>> round(noise_sigma(Recipe(workers=8, gradient_noise=1.0), 8 * 64), 3)
    2.646
    """
    if recipe.gradient_noise == 0:
        return 0.0
    from rueda.optim.noise import sigma_for  # loads torch, which `adapted` is used without

    factor = rate_factor(recipe.scaling, recipe.scale)
    return recipe.gradient_noise * sigma_for(global_batch, recipe.base_batch or recipe.local_batch, rate_factor=factor)
