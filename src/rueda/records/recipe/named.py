"""The named recipes: each technique of the course against the accuracy loss of large batches, on its own.

A named recipe is made from the recipe with which one worker trains a task well, for a number of workers. The local
batch stays (batch growth alone starts below it), so the global batch grows with the workers, and with it the loss in
accuracy that the technique shall win back.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rueda.errors import RecipeError
from rueda.records.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Named:
    """A technique: a line about it, and what it changes in the base recipe."""

    summary: str
    changes: Callable[[Recipe], dict[str, Any]]
    """from the base recipe, with its workers set, to the fields that differ"""


def _warmup(base: Recipe) -> dict[str, Any]:
    """Warm up for 5 epochs as in the paper, or for a quarter of a short training."""
    epochs = min(5.0, base.epochs / 4)
    return {"warmup_epochs": epochs, "reasons": {"warmup_epochs": "5 epochs, or a quarter of a short training"}}


def _growth(base: Recipe) -> dict[str, Any]:
    """Grow from one worker's batch to that of all, in three equal strides at quarters of the training."""
    quarters = sorted({float(max(1, round(base.epochs * quarter / 4))) for quarter in (1, 2, 3)})
    return {
        "batch": max(1, base.batch // base.workers),
        "largest_local_batch": base.batch,
        "largest_batch": base.batch * base.workers,
        "base_batch": base.batch,
        "growth_factor": float(base.workers) ** (1 / len(quarters)),
        "milestones": tuple(quarters),
        "schedule": "constant",
        "reasons": {"growth_factor": "one worker's batch to that of all workers, in equal strides"},
    }


NAMED: dict[str, Named] = {
    "one-worker": Named(summary="the base: one worker, its own batch and rate", changes=lambda base: {"workers": 1}),
    "naive": Named(summary="N workers, nothing else changed", changes=lambda base: {}),
    "batch-norm": Named(
        summary="batch norm in the model, statistics per worker",
        changes=lambda base: {"model": {**base.model, "batch_norm": True}},
    ),
    "linear-scaling": Named(summary="rate x N, from the first step", changes=lambda base: {"scaling": "linear"}),
    "linear-warmup": Named(
        summary="rate x N, reached by a gradual warm-up (Goyal et al. 2017)",
        changes=lambda base: {"scaling": "linear", **_warmup(base)},
    ),
    "sqrt-scaling": Named(
        summary="rate x sqrt(N) with warm-up (Krizhevsky 2014, Hoffer et al. 2017)",
        changes=lambda base: {"scaling": "sqrt", **_warmup(base)},
    ),
    "ghost-batch-norm": Named(
        summary="batch norm over ghost batches of 32, sqrt scaling (Hoffer et al. 2017)",
        changes=lambda base: {
            "model": {**base.model, "batch_norm": True},
            "ghost_batch": min(32, base.batch),
            "scaling": "sqrt",
        },
    ),
    "gradient-noise": Named(
        summary="multiplicative noise that restores the small batch's covariance (Hoffer et al. 2017)",
        changes=lambda base: {"gradient_noise": 1.0},
    ),
    "longer-training": Named(
        summary="as many updates as one worker: N x the epochs, sqrt scaling with warm-up (Hoffer et al. 2017)",
        changes=lambda base: {"keep_updates": True, "scaling": "sqrt", **_warmup(base)},
    ),
    "batch-growth": Named(
        summary="start at one worker's batch and grow it instead of decaying the rate (Smith et al. 2017)",
        changes=_growth,
    ),
    "lars": Named(
        summary="layer-wise rates on SGD (You et al. 2017), sqrt scaling with warm-up",
        # Biases and norms take the global rate itself: it stays that of plain SGD, and the trust is raised instead.
        changes=lambda base: {"optimizer": "lars", "rate": 0.1, "trust": 0.02, "scaling": "sqrt", **_warmup(base)},
    ),
    "larc": Named(
        summary="layer-wise rates, clipped to the global one, on SGD, rate x N with warm-up",
        changes=lambda base: {"optimizer": "larc", "rate": 0.1, "scaling": "linear", **_warmup(base)},
    ),
    "lamb": Named(
        summary="layer-wise rates on Adam (You et al. 2019), sqrt scaling with warm-up",
        changes=lambda base: {"optimizer": "lamb", "rate": 5e-3, "scaling": "sqrt", **_warmup(base)},
    ),
    "novograd": Named(
        summary="layer-wise second moments (Ginsburg et al. 2019), sqrt scaling with warm-up",
        changes=lambda base: {"optimizer": "novograd", "rate": 1e-2, "scaling": "sqrt", **_warmup(base)},
    ),
    "adascale": Named(
        summary="rate x the gain that the gradients' variance allows (Johnson et al. 2020)",
        changes=lambda base: {"adascale": True, "scaling": "none"},
    ),
}


def named_recipe(name: str, base: Recipe, workers: int) -> Recipe:
    """Make a named recipe from a task's own, for a number of workers.

    >>> named_recipe("linear-warmup", Recipe(epochs=12), workers=8).warmup_epochs
    3.0
    """
    if name not in NAMED:
        close = difflib.get_close_matches(name, NAMED, 1)
        do = f"did you mean {close[0]}?" if close else "see `rueda recipe list`"
        raise RecipeError("recipe", expected="a named recipe", got=name, do=do)
    start = base.change(workers=workers)
    return start.change(**NAMED[name].changes(start))
