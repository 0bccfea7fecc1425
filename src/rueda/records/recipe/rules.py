"""Which values a recipe may have, and which of its fields contradict each other.

A recipe is checked when it is made, so that a mistake is refused in one line before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rueda.errors import RecipeError, explain

if TYPE_CHECKING:
    from rueda.records.recipe.recipe import Recipe

OPTIMIZERS = ("sgd", "adam", "adamw", "lars", "larc", "lamb", "novograd")
SCALINGS = ("none", "linear", "sqrt", "legw")
WARMUPS = ("gradual", "constant", "from-zero")
SCHEDULES = ("constant", "step", "polynomial", "cosine", "one-cycle")
PRECISIONS = ("float32", "float64", "bf16", "fp16")
PARTITIONS = ("shards", "random")
REMAINDERS = ("drop", "pad")
RECALIBRATIONS = ("auto", "always", "never")

_CHOICES = {
    "optimizer": OPTIMIZERS,
    "scaling": SCALINGS,
    "warmup": WARMUPS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "partition": PARTITIONS,
    "remainder": REMAINDERS,
    "recalibrate": RECALIBRATIONS,
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
            raise RecipeError(explain(name, expected="a positive number", got=value, do="correct the recipe"))
    for name in _NOT_NEGATIVE:
        if not getattr(recipe, name) >= 0:
            raise RecipeError(explain(name, expected="0 or more", got=getattr(recipe, name), do="correct the recipe"))
    for name, choices in _CHOICES.items():
        if getattr(recipe, name) not in choices:
            raise RecipeError(
                explain(
                    name,
                    expected=f"one of {', '.join(choices)}",
                    got=getattr(recipe, name),
                    do="choose one",
                )
            )
    _check_contradictions(recipe, names)


def _check_contradictions(recipe: Recipe, names: Iterable[str]) -> None:
    rules: list[tuple[bool, str]] = [
        (
            recipe.warmup_epochs > recipe.epochs,
            f"warmup_epochs = {recipe.warmup_epochs:g} is longer than the training of {recipe.epochs} epochs; "
            "lower it or raise epochs",
        ),
        (
            recipe.ghost_batch is not None and recipe.ghost_batch > recipe.batch,
            f"ghost_batch = {recipe.ghost_batch} is larger than the local batch = {recipe.batch}; "
            f"set it to {recipe.batch} or less",
        ),
        (
            recipe.ghost_batch is not None and recipe.sync_batch_norm,
            "ghost_batch makes the statistics smaller and sync_batch_norm makes them larger; keep one of them",
        ),
        (
            recipe.schedule == "step" and not recipe.milestones,
            "schedule = 'step' needs milestones, the epochs at which the rate falls; add e.g. milestones = [3, 6]",
        ),
        (
            recipe.growth_factor is not None and not recipe.milestones,
            "growth_factor needs milestones, the epochs at which the batch grows; add e.g. milestones = [3, 6]",
        ),
        (
            recipe.growth_factor is not None and recipe.growth_factor < 1,
            f"growth_factor = {recipe.growth_factor} would shrink the batch; give 1 or more",
        ),
        (
            recipe.growth_factor is not None and recipe.schedule == "step",
            "growth_factor grows the batch instead of decaying the rate, but schedule = 'step' decays it at the "
            "same milestones; set schedule = 'constant'",
        ),
        (
            recipe.schedule == "one-cycle" and recipe.warmup_epochs > 0,
            "schedule = 'one-cycle' warms up by itrecipe; set warmup_epochs = 0",
        ),
        (
            list(recipe.milestones) != sorted(set(recipe.milestones)),
            f"milestones = {list(recipe.milestones)} must rise; sort them",
        ),
        (
            recipe.target_accuracy is not None and not 0 < recipe.target_accuracy <= 1,
            f"target_accuracy = {recipe.target_accuracy} is not a fraction; give e.g. 0.85",
        ),
        (
            recipe.momentum >= 1,
            f"momentum = {recipe.momentum} never forgets; give less than 1",
        ),
        (
            recipe.nesterov and recipe.optimizer not in ("sgd", "lars", "larc"),
            f"nesterov belongs to sgd, lars and larc, not to {recipe.optimizer}; set nesterov = false",
        ),
        (
            recipe.momentum_correction and recipe.optimizer != "lars",
            f"momentum_correction is for lars, whose momentum holds the rate, not for {recipe.optimizer}; "
            "set momentum_correction = false",
        ),
        (
            recipe.adascale and recipe.growth_factor is not None,
            "adascale and growth_factor both decide what a larger batch means; keep one of them",
        ),
        (
            recipe.growth_from_noise and recipe.growth_factor is not None,
            "growth_from_noise and growth_factor both decide when the batch grows; keep one of them",
        ),
        (
            recipe.growth_from_noise and recipe.adascale,
            "adascale and growth_from_noise both decide what a larger batch means; keep one of them",
        ),
        (
            (recipe.growth_from_noise or recipe.noise_scale_groups) and recipe.noise_scale_every is None,
            f"{'growth_from_noise' if recipe.growth_from_noise else 'noise_scale_groups'} needs measurements; "
            "set noise_scale_every, such as 10",
        ),
        (
            recipe.noise_scale_memory < 2,
            f"noise_scale_memory = {recipe.noise_scale_memory} remembers no two measurements; give 2 or more",
        ),
        (
            recipe.noise_scale_every is not None and recipe.global_batch < 2,
            "noise_scale_every compares the gradients of parts of a batch, but the global batch is 1; "
            "set batch to 2 or more",
        ),
        (
            recipe.noise_scale_every is not None and recipe.sync_batch_norm,
            "noise_scale_every needs workers whose gradients are independent, but sync_batch_norm mixes them; "
            "keep one of them, or use ghost_batch",
        ),
        (
            recipe.adascale and recipe.scaling != "none",
            f"adascale scales the rate by itrecipe, but scaling = {recipe.scaling!r}; set scaling = 'none'",
        ),
    ]
    for broken, message in rules:
        if broken:
            raise RecipeError(message)
    unknown = sorted(set(recipe.reasons) - set(names))
    if unknown:
        raise RecipeError(explain("reasons", expected="names of recipe fields", got=unknown[0], do="correct it"))
