"""The named recipes: each applies one technique against the accuracy loss of large batches.

A named recipe is made from the recipe with which one worker trains a task well, for a number of workers. The local
batch stays the same (only batch growth starts with a smaller one), so that the global batch grows with the number of
workers. A large global batch costs accuracy, which the technique is meant to win back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rueda.errors import RecipeError, suggest
from rueda.records.recipe.recipe import Recipe


def _unchanged(base: Recipe) -> dict[str, Any]:
    return {}


def _warmup(base: Recipe) -> dict[str, Any]:
    """Warm up for 5 epochs as in the paper, or for a quarter of a short training."""
    epochs = min(5.0, base.epochs / 4)
    return {"warmup_epochs": epochs, "reasons": {"warmup_epochs": "5 epochs, or a quarter of a short training"}}


def _batch_norm(base: Recipe) -> dict[str, Any]:
    return {"model": {**base.model, "batch_norm": True}}


def _ghost_batch_norm(base: Recipe) -> dict[str, Any]:
    return {**_batch_norm(base), "ghost_batch": min(32, base.batch)}


def _growth(base: Recipe) -> dict[str, Any]:
    """Grow from one worker's batch to that of all workers by equal factors at the quarters of the training."""
    return _grow_at(base, {float(max(1, round(base.epochs * quarter / 4))) for quarter in (1, 2, 3)})


def _decay(base: Recipe) -> dict[str, Any]:
    """Divide the rate by the factors of :func:`_growth` at the same epochs: noise falls alike (Smith et al. 2017)."""
    grown = _growth(base)
    return {"milestones": grown["milestones"], "decay": 1 / grown["growth_factor"]}


def _ramp_up(base: Recipe) -> dict[str, Any]:
    """Grow from one worker's batch to that of all workers at the ends of the epochs of the first third."""
    return _grow_at(base, {float(epoch) for epoch in range(1, max(1, round(base.epochs / 3)) + 1)})


def _second_half(base: Recipe) -> dict[str, Any]:
    return {"sync_from_epoch": base.epochs // 2}


def _grow_at(base: Recipe, epochs: set[float]) -> dict[str, Any]:
    """Grow to exactly the batch of all workers; with fewer examples than workers, each starts with one of them.

    What a factor exceeds that batch by would lower the rate instead
    (:meth:`rueda.optim.batch_growth.BatchGrowth.rate_factor`).
    """
    first, last = max(1, base.batch // base.workers), base.batch
    return {
        "batch": first,
        "largest_local_batch": base.batch,
        "largest_batch": base.batch * base.workers,
        "base_batch": base.batch,
        "growth_factor": (last / first) ** (1 / len(epochs)),
        "milestones": tuple(sorted(epochs)),
        "reasons": {"growth_factor": "from one worker's batch to that of all workers, in equal factors"},
    }


@dataclass(frozen=True)
class NamedRecipe:
    """A technique: a one-line summary, and the changes that it makes to the base recipe."""

    summary: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """fields and their new values"""
    derived: Callable[[Recipe], dict[str, Any]] = _unchanged
    """takes the base recipe, with its workers set, and returns further fields to change"""
    control: str = ""
    """the technique that one worker gets in the control row: the same one if it changes what one worker trains, too,
    beyond a warm-up (a model, an optimizer), or another one that does the same to one worker; empty: none"""
    is_control: bool = False
    """it is meant for one worker only, with the number of workers of the rows that it is compared with"""


NAMED: dict[str, NamedRecipe] = {
    "one-worker": NamedRecipe("one worker with its own batch and rate", {"workers": 1}),
    "naive": NamedRecipe("N workers, nothing else changed"),
    "batch-norm": NamedRecipe(
        "batch norm in the model, with statistics per worker", derived=_batch_norm, control="batch-norm"
    ),
    "linear-scaling": NamedRecipe("rate x N, from the first step", {"scaling": "linear"}),
    "linear-warmup": NamedRecipe(
        "rate x N after a gradual warm-up (Goyal et al. 2017)", {"scaling": "linear"}, _warmup
    ),
    "sqrt-scaling": NamedRecipe(
        "rate x sqrt(N) with warm-up (Krizhevsky 2014, Hoffer et al. 2017)", {"scaling": "sqrt"}, _warmup
    ),
    "ghost-batch-norm": NamedRecipe(
        "batch norm over ghost batches of 32, sqrt scaling (Hoffer et al. 2017)",
        {"scaling": "sqrt"}, _ghost_batch_norm, control="ghost-batch-norm",
    ),
    "gradient-noise": NamedRecipe(
        "multiplicative noise that restores the small batch's covariance (Hoffer et al. 2017)", {"gradient_noise": 1.0}
    ),
    "longer-training": NamedRecipe(
        "as many updates as one worker: N x the epochs, sqrt scaling with warm-up (Hoffer et al. 2017)",
        {"keep_updates": True, "scaling": "sqrt"}, _warmup,
    ),
    "batch-growth": NamedRecipe(
        "start at one worker's batch and grow it instead of decaying the rate (Smith et al. 2017)",
        {"schedule": "constant"}, _growth, control="decay",
    ),
    "decay": NamedRecipe(
        "the rate decays where batch-growth grows the batch, by the same factors: its control on one worker",
        {"schedule": "step"}, _decay, is_control=True,
    ),
    "batch-ramp-up": NamedRecipe(
        "start at one worker's batch, reach that of all after a third of the training (Brown et al. 2020)",
        derived=_ramp_up,
    ),
    "lars": NamedRecipe(
        "layer-wise rates on SGD (You et al. 2017), sqrt scaling with warm-up",
        {"optimizer": "lars", "scaling": "sqrt"}, _warmup, control="lars",
    ),
    "larc": NamedRecipe(
        "layer-wise rates, clipped to the global one, on SGD, rate x N with warm-up",
        {"optimizer": "larc", "scaling": "linear"}, _warmup, control="larc",
    ),
    "lamb": NamedRecipe(
        "layer-wise rates on Adam (You et al. 2019), sqrt scaling with warm-up",
        {"optimizer": "lamb", "scaling": "sqrt"}, _warmup, control="lamb",
    ),
    "novograd": NamedRecipe(
        "layer-wise second moments (Ginsburg et al. 2019), sqrt scaling with warm-up",
        {"optimizer": "novograd", "scaling": "sqrt"}, _warmup, control="novograd",
    ),
    "adascale": NamedRecipe(
        "rate x the gain that the gradients' variance allows (Johnson et al. 2020)",
        {"adascale": True, "scaling": "none"},
    ),
    "local-sgd": NamedRecipe(
        "parameters averaged every 8 updates, instead of gradients at each (Stich 2018)", {"sync_every": 8}
    ),
    "post-local-sgd": NamedRecipe(
        "gradients averaged in the first half, then parameters every 8 updates (Lin et al. 2018)",
        {"sync_every": 8}, _second_half,
    ),
    "diloco": NamedRecipe(
        "every 64 updates an outer Nesterov step towards the average (Douillard et al. 2023)",
        {"sync_every": 64, "outer_optimizer": "nesterov"},
    ),
    "fp16-compression": NamedRecipe(
        "gradients averaged in float16: half of the bytes", {"gradient_compression": "fp16"}
    ),
    "bf16-compression": NamedRecipe(
        "gradients averaged in bfloat16: half of the bytes", {"gradient_compression": "bf16"}
    ),
    "powersgd": NamedRecipe(
        "gradients averaged as factors of rank 2, from the 11th update on (Vogels et al. 2019)",
        {"gradient_compression": "powersgd"},
    ),
}  # fmt: skip


def named_recipe(name: str, base: Recipe, workers: int) -> Recipe:
    """Return a named recipe for a task and a number of workers.

    Args:
        name: one of :data:`NAMED`.
        base: the recipe with which one worker trains the task well.
        workers: how many workers train.

    >>> named_recipe("linear-warmup", Recipe(epochs=12), workers=8).warmup_epochs
    3.0
    """
    if name not in NAMED:
        do = suggest(name, NAMED, "see `rueda recipe list`")
        raise RecipeError("recipe", expected="a named recipe", got=name, do=do)
    start = base.change(workers=workers)
    return start.overlay(**NAMED[name].values, **NAMED[name].derived(start))
