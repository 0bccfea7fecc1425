"""Which values a recipe may have, and which of its fields contradict each other.

A recipe is checked when it is made, so that a mistake is refused in one line before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rueda.errors import RecipeError

if TYPE_CHECKING:
    from rueda.records.recipe.recipe import Recipe

CHOICES = {
    "optimizer": ("sgd", "adam", "adamw", "lars", "larc", "lamb", "novograd"),
    "scaling": ("none", "linear", "sqrt", "legw"),
    "warmup": ("gradual", "constant", "from-zero"),
    "schedule": ("constant", "step", "polynomial", "cosine", "one-cycle"),
    "precision": ("float32", "float64", "bf16", "fp16"),
    "partition": ("shards", "random"),
    "remainder": ("drop", "pad"),
    "recalibrate": ("auto", "always", "never"),
}
_POSITIVE = (
    *("workers", "batch", "accumulate", "epochs", "rate", "base_batch", "trust", "clip", "ghost_batch"),
    *("growth_factor", "largest_batch", "largest_local_batch", "keep", "log_every", "checkpoint_every", "patience"),
    *("noise_scale_every", "noise_scale_memory"),
)
_NOT_NEGATIVE = ("momentum", "weight_decay", "warmup_epochs", "final_rate", "gradient_noise", "additive_noise", "seed")


def check(recipe: Recipe, names: Iterable[str]) -> None:
    """Refuse a recipe with a value out of range or with two fields that contradict each other.

    Args:
        recipe: to be checked.
        names: of the fields, for which there may be reasons.

    Raises:
        RecipeError: in one line, what was expected and what to do.
    """
    for name in _POSITIVE:
        value = getattr(recipe, name)
        if value is not None and not value > 0:
            raise RecipeError(name, expected="a positive number", got=value, do="correct the recipe")
    for name in _NOT_NEGATIVE:
        if not getattr(recipe, name) >= 0:
            raise RecipeError(name, expected="0 or more", got=getattr(recipe, name), do="correct the recipe")
    for name, choices in CHOICES.items():
        if getattr(recipe, name) not in choices:
            expected = f"one of {', '.join(choices)}"
            raise RecipeError(name, expected=expected, got=getattr(recipe, name), do="choose one")
    for message in _contradictions(recipe):
        raise RecipeError(message)
    unknown = sorted(set(recipe.reasons) - set(names))
    if unknown:
        raise RecipeError("reasons", expected="names of recipe fields", got=unknown[0], do="correct it")


def _contradictions(recipe: Recipe) -> Iterator[str]:
    """Say which fields contradict each other, and what to do."""
    if recipe.warmup_epochs > recipe.epochs:
        yield (
            f"warmup_epochs = {recipe.warmup_epochs:g} is longer than the training of {recipe.epochs} epochs; "
            "lower it or raise epochs"
        )
    if recipe.ghost_batch is not None and recipe.ghost_batch > recipe.batch:
        yield (
            f"ghost_batch = {recipe.ghost_batch} is larger than the local batch = {recipe.batch}; "
            f"set it to {recipe.batch} or less"
        )
    if recipe.ghost_batch is not None and recipe.sync_batch_norm:
        yield "ghost_batch makes the statistics smaller and sync_batch_norm makes them larger; keep one of them"
    if recipe.schedule == "step" and not recipe.milestones:
        yield "schedule = 'step' needs milestones, the epochs at which the rate falls; add e.g. milestones = [3, 6]"
    if recipe.growth_factor is not None and not recipe.milestones:
        yield "growth_factor needs milestones, the epochs at which the batch grows; add e.g. milestones = [3, 6]"
    if recipe.growth_factor is not None and recipe.growth_factor < 1:
        yield f"growth_factor = {recipe.growth_factor} would shrink the batch; give 1 or more"
    if recipe.growth_factor is not None and recipe.schedule == "step":
        yield (
            "growth_factor grows the batch instead of decaying the rate, but schedule = 'step' decays it at the "
            "same milestones; set schedule = 'constant'"
        )
    if recipe.schedule == "one-cycle" and recipe.warmup_epochs > 0:
        yield "schedule = 'one-cycle' warms up by itself; set warmup_epochs = 0"
    if list(recipe.milestones) != sorted(set(recipe.milestones)):
        yield f"milestones = {list(recipe.milestones)} must rise; sort them"
    if recipe.target_accuracy is not None and not 0 < recipe.target_accuracy <= 1:
        yield f"target_accuracy = {recipe.target_accuracy} is not a fraction; give e.g. 0.85"
    if recipe.momentum >= 1:
        yield f"momentum = {recipe.momentum} never forgets; give less than 1"
    if recipe.nesterov and recipe.optimizer not in ("sgd", "lars", "larc"):
        yield f"nesterov belongs to sgd, lars and larc, not to {recipe.optimizer}; set nesterov = false"
    if recipe.momentum_correction and recipe.optimizer != "lars":
        yield (
            f"momentum_correction is for lars, whose momentum holds the rate, not for {recipe.optimizer}; "
            "set momentum_correction = false"
        )
    if recipe.adascale and recipe.growth_factor is not None:
        yield "adascale and growth_factor both decide what a larger batch means; keep one of them"
    if recipe.growth_from_noise and recipe.growth_factor is not None:
        yield "growth_from_noise and growth_factor both decide when the batch grows; keep one of them"
    if recipe.growth_from_noise and recipe.adascale:
        yield "adascale and growth_from_noise both decide what a larger batch means; keep one of them"
    if (recipe.growth_from_noise or recipe.noise_scale_groups) and recipe.noise_scale_every is None:
        yield (
            f"{'growth_from_noise' if recipe.growth_from_noise else 'noise_scale_groups'} needs measurements; "
            "set noise_scale_every, such as 10"
        )
    if recipe.noise_scale_memory < 2:
        yield f"noise_scale_memory = {recipe.noise_scale_memory} remembers no two measurements; give 2 or more"
    if recipe.noise_scale_every is not None and recipe.global_batch < 2:
        yield (
            "noise_scale_every compares the gradients of parts of a batch, but the global batch is 1; "
            "set batch to 2 or more"
        )
    if recipe.noise_scale_every is not None and recipe.sync_batch_norm:
        yield (
            "noise_scale_every needs workers whose gradients are independent, but sync_batch_norm mixes them; "
            "keep one of them, or use ghost_batch"
        )
    if recipe.adascale and recipe.scaling != "none":
        yield f"adascale scales the rate by itself, but scaling = {recipe.scaling!r}; set scaling = 'none'"
