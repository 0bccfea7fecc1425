"""Which values a recipe may have, and which of its fields contradict each other.

A recipe is checked when it is created, so that a mistake is reported in one line before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any

from rueda.errors import RecipeError
from rueda.records.recipe.default_rates import DEFAULT_RATES
from rueda.records.recipe.parallel_form import KNOWN_FORMS, PIPELINES_ALONE, has_pipeline, is_known_form

if TYPE_CHECKING:
    from rueda.records.recipe.recipe import Recipe

CHOICES = {
    "optimizer": tuple(DEFAULT_RATES),
    "scaling": ("none", "linear", "sqrt", "legw"),
    "warmup": ("gradual", "constant", "from-zero"),
    "schedule": ("constant", "step", "polynomial", "cosine", "one-cycle"),
    "precision": ("auto", "float32", "float64", "bf16", "fp16"),
    "pipeline_schedule": ("gpipe", "1f1b", "interleaved"),
    "partition": ("shards", "random"),
    "remainder": ("drop", "pad"),
    "recalibrate": ("auto", "always", "never"),
    "on_divergence": ("stop", "skip", "roll-back"),
    "elastic_batch": ("keep", "scale"),
    "outer_optimizer": ("average", "nesterov"),
    "gradient_compression": ("none", "fp16", "bf16", "powersgd"),
}
_POSITIVE = (
    *("workers", "batch", "accumulate", "epochs", "rate", "base_batch", "trust", "clip", "ghost_batch"),
    *("growth_factor", "largest_batch", "largest_local_batch", "keep", "log_every", "checkpoint_every", "patience"),
    *("checkpoint_minutes", "noise_scale_every", "noise_scale_memory", "evaluation_batch", "bucket_megabytes"),
    *("commit_every", "sync_every", "outer_rate", "sync_fragments", "micro_batches", "powersgd_rank", "powersgd_start"),
)
_NOT_NEGATIVE = (
    *("momentum", "weight_decay", "warmup_epochs", "final_rate", "gradient_noise", "additive_noise", "seed"),
    *("compare_every", "sync_from_epoch", "outer_momentum", "sync_delay", "sync_mix"),
)
_GRADIENTS_NEEDED = (
    *("adascale", "noise_scale_every", "sync_batch_norm", "ema_decay", "static_graph", "gradient_compression"),
)
"""fields that rest on gradients, or weights, that are the same on all workers at every update"""


def check(recipe: Recipe, names: Iterable[str]) -> None:
    """Check the ranges of all fields and whether fields contradict each other.

    Args:
        recipe: the recipe to check.
        names: the names of its fields, the only ones that ``reasons`` may explain.

    Raises:
        RecipeError: a value is out of range, or two fields contradict each other.
    """
    for name in _POSITIVE:
        value = getattr(recipe, name)
        if value is not None and not (_is_number(value) and value > 0):
            raise RecipeError(name, expected="a positive number", got=value, do="correct the recipe")
    for name in _NOT_NEGATIVE:
        value = getattr(recipe, name)
        if not (_is_number(value) and value >= 0):
            raise RecipeError(name, expected="0 or more", got=value, do="correct the recipe")
    for name, choices in CHOICES.items():
        if getattr(recipe, name) not in choices:
            expected = f"one of {', '.join(choices)}"
            raise RecipeError(name, expected=expected, got=getattr(recipe, name), do="choose one")
    if not (isinstance(recipe.parallel, str) and is_known_form(recipe.parallel)):
        raise RecipeError("parallel", expected=KNOWN_FORMS, got=recipe.parallel, do="choose one")
    for message, contradicts in _contradictions(recipe).items():
        if contradicts:
            raise RecipeError(message)
    unknown = sorted(set(recipe.reasons) - set(names))
    if unknown:
        raise RecipeError("reasons", expected="names of recipe fields", got=unknown[0], do="correct it")


def _is_number(value: Any) -> bool:
    """Tell whether a value is finite and, if it is whole, has at most 64 bits, as torch's numbers have."""
    limit = 2**63 if type(value) is int else math.inf
    return issubclass(type(value), Real) and bool(abs(value) < limit)


def _contradictions(recipe: Recipe) -> dict[str, bool]:
    """Return a message for each pair of fields that may contradict each other, and whether they do."""
    r = recipe
    grown = r.growth_factor is not None
    shared = next((name for name in _GRADIENTS_NEEDED if getattr(r, name) not in (None, False, "none")), None)
    compresses, power = r.gradient_compression != "none", r.gradient_compression == "powersgd"
    compared = "adascale" if r.adascale else "noise_scale_every"
    leaves_out = "precision = 'fp16'" if r.precision == "fp16" else "on_divergence = 'skip'"
    noise = "growth_from_noise" if r.growth_from_noise else "noise_scale_groups"
    others = {name: getattr(r, name) for name, default in PIPELINES_ALONE.items() if getattr(r, name) != default}
    piped = next((f"{name} = {value!r}" for name, value in others.items()), "")
    return {
        f"warmup_epochs = {r.warmup_epochs:g} is longer than the training of {r.epochs} epochs; lower it or raise "
        "epochs": r.warmup_epochs > r.epochs,
        f"ghost_batch = {r.ghost_batch} is larger than the local batch = {r.batch}; set it to {r.batch} or less":
            (r.ghost_batch or 0) > r.batch,
        "ghost_batch makes the statistics smaller and sync_batch_norm makes them larger; keep one of them":
            r.ghost_batch is not None and r.sync_batch_norm,
        "schedule = 'step' needs milestones, the epochs at which the rate falls; add e.g. milestones = [3, 6]":
            r.schedule == "step" and not r.milestones,
        "growth_factor needs milestones, the epochs at which the batch grows; add e.g. milestones = [3, 6]":
            grown and not r.milestones,
        f"growth_factor = {r.growth_factor} would shrink the batch; give 1 or more": (r.growth_factor or 1) < 1,
        "growth_factor grows the batch instead of decaying the rate, but schedule = 'step' decays it at the same "
        "milestones; set schedule = 'constant'": grown and r.schedule == "step",
        "schedule = 'one-cycle' has a warm-up of its own; set warmup_epochs = 0":
            r.schedule == "one-cycle" and r.warmup_epochs > 0,
        f"milestones = {list(r.milestones)} must rise; sort them": list(r.milestones) != sorted(set(r.milestones)),
        f"target_accuracy = {r.target_accuracy} is not a fraction; give e.g. 0.85":
            r.target_accuracy is not None and not 0 < r.target_accuracy <= 1,
        "target_accuracy and target both say when to stop; keep one of them":
            r.target_accuracy is not None and r.target is not None,
        f"target_metric = {r.target_metric!r} needs a target, the value to reach; set it":
            r.target_metric is not None and r.target is None,
        f"loader_processes = {r.loader_processes} is not a number of processes; give 0 or more":
            (r.loader_processes or 0) < 0,
        f"validation = {r.validation} is not a fraction of the training data; give e.g. 0.1":
            r.validation is not None and not 0 < r.validation < 1,
        f"momentum = {r.momentum} never decays; give less than 1": r.momentum >= 1,
        f"ema_decay = {r.ema_decay} is not a decay; give a number above 0 and below 1, such as 0.999":
            r.ema_decay is not None and not 0 < r.ema_decay < 1,
        f"nesterov belongs to sgd, lars and larc, not to {r.optimizer}; set nesterov = false":
            r.nesterov and r.optimizer not in ("sgd", "lars", "larc"),
        f"momentum_correction is for lars, whose momentum contains the rate, not for {r.optimizer}; set "
        "momentum_correction = false": r.momentum_correction and r.optimizer != "lars",
        f"sync_every and outer optimizers exchange whole models, which parallel = {r.parallel!r} divides; keep one of "
        "them": r.is_local and r.parallel != "data",
        "adascale and growth_factor both decide what a larger batch means; keep one of them": r.adascale and grown,
        "growth_from_noise and growth_factor both decide when the batch grows; keep one of them":
            r.growth_from_noise and grown,
        "adascale and growth_from_noise both decide what a larger batch means; keep one of them":
            r.growth_from_noise and r.adascale,
        f"{noise} needs measurements; set noise_scale_every, such as 10":
            (r.growth_from_noise or r.noise_scale_groups) and r.noise_scale_every is None,
        f"noise_scale_memory = {r.noise_scale_memory} is too short for an average; give 2 or more":
            r.noise_scale_memory < 2,
        "noise_scale_every compares the gradients of parts of a batch, but the global batch is 1; set batch to 2 or "
        "more": r.noise_scale_every is not None and r.global_batch < 2,
        "noise_scale_every needs workers whose gradients are independent, but sync_batch_norm mixes them; keep one of "
        "them, or use ghost_batch": r.noise_scale_every is not None and r.sync_batch_norm,
        f"adascale compares single workers, of batch {r.local_batch}, so base_batch = {r.base_batch} has no effect; "
        "leave it out": r.adascale and r.base_batch not in (None, r.local_batch),
        f"adascale scales the rate by itself, but scaling = {r.scaling!r}; set scaling = 'none'":
            r.adascale and r.scaling != "none",
        f"adascale ends after as many steps as one worker makes, and keep_updates would make them {r.scale:g} times as "
        "many; leave it out": r.adascale and r.keep_updates and r.scale > 1,
        f"{shared} needs gradients that are averaged at every update, but sync_every = {r.sync_every} and "
        f"outer_optimizer = {r.outer_optimizer!r} exchange parameters; leave one of them out":
            r.is_local and shared is not None,
        "on_divergence = 'skip' leaves an update out on all workers, which make their own between two exchanges; set "
        "'stop' or 'roll-back'": r.is_local and r.on_divergence == "skip",
        f"sync_fragments = {r.sync_fragments} are exchanged in turn within sync_every = {r.sync_every} updates, one "
        "after an update at most; lower it": r.sync_fragments > r.sync_every,
        f"sync_delay = {r.sync_delay} would begin an exchange before the last one is used, after sync_every = "
        f"{r.sync_every} updates; lower it": r.sync_delay >= max(1, r.sync_every),
        f"sync_mix = {r.sync_mix:g} keeps a worker's own parameters and drops the exchange; give less than 1":
            r.sync_mix >= 1,
        f"outer_momentum = {r.outer_momentum} never decays; give less than 1": r.outer_momentum >= 1,
        f"sync_from_epoch = {r.sync_from_epoch} needs sync_every, the updates between two exchanges from then on; set "
        "it to 2 or more": r.sync_from_epoch > 0 and not r.is_local,
        f"{compared} compares each worker's gradient with the mean of all, which gradient_compression = "
        f"{r.gradient_compression!r} changes; keep one of them":
            compresses and (r.adascale or r.noise_scale_every is not None),
        f"gradient_compression compresses what DistributedDataParallel sends, but parallel = {r.parallel!r} sends its "
        "gradients by itself; keep one of them": compresses and r.parallel != "data",
        f"{piped} is for pipelines, and parallel = {r.parallel!r} has none; leave it out, or set parallel = 'pipeline'":
            piped != "" and not has_pipeline(r.parallel),
        f"{leaves_out} leaves out updates whose gradient is not finite, but PowerSGD's error would keep it for ever; "
        "keep one of them": power and (r.precision == "fp16" or r.on_divergence == "skip"),
        f"powersgd_start = {r.powersgd_start}: torch arranges its buckets in the first two updates; give 2 or more":
            r.powersgd_start < 2,
        "compile chooses by itself what the backward pass computes again; set activation_checkpointing = false, or "
        "compile = false": r.compile and r.activation_checkpointing,
    }  # fmt: skip
