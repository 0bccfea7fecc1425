"""Gradient compression: an all-reduce that sends fewer bytes than the gradients have, as the recipe asks for it.

===========  ===========================================================================  ==============================
field        what is averaged                                                             bytes of a float32 gradient
===========  ===========================================================================  ==============================
``none``     the gradients                                                                all
``fp16``     gradients rounded to float16, divided by N, and added up in float16          half
``bf16``     the same in bfloat16: float32's range, 8 bits of mantissa instead of 11      half
``powersgd`` two factors of a low rank of each matrix (:mod:`rueda.train.power_sgd`)      r (n + m) / (n m) of a matrix
===========  ===========================================================================  ==============================

They are torch's communication hooks of DistributedDataParallel. Each worker compresses its own gradient of the whole
update: with ``accumulate`` its micro-batches are added up first, in full precision. Clipping, noise and the optimizer
see the average, in the data type of the parameters.

What is compressed does not depend on the transport. Workers of one host, who otherwise average in shared memory, send
nothing over a wire and gain nothing; they compress all the same, through Gloo, so that a laptop trains what a cluster
trains. Rehearsed workers (:mod:`rueda.train.compressed_rehearsal`) compress one after the other, with the numbers of
real ones: exactly for two, and for more up to the order in which halves are added up, which differs from one transport
to the next. One worker has nothing to send and compresses nothing.

float16 holds up to 65,504: a larger gradient becomes infinity, which ``on_divergence`` handles. Below 6e-8 it has 0
only. ``precision = fp16`` multiplies the loss, and so the gradients, by a scale that avoids both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from rueda.records import Recipe
from rueda.train.power_sgd import PowerSGD, factors_of

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""the data types in which halves are sent, by the value of the recipe's field"""
_HOOKS: dict[str, Any] = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}


def compress_exchange(
    model: nn.Module, recipe: Recipe, parameters: Mapping[str, nn.Parameter]
) -> PowerSGD | None:  # fmt: skip
    """Let a model of several workers exchange compressed gradients, if the recipe says so.

    Args:
        model: a DistributedDataParallel model, whose communication hook becomes that of the compression; of one worker
            the model itself, which exchanges nothing.
        recipe: the compression.
        parameters: the trained parameters by name.

    Returns:
        What has a state of its own between two updates; None if nothing has.
    """
    if recipe.gradient_compression == "none" or not isinstance(model, DistributedDataParallel):
        return None
    if recipe.gradient_compression == "powersgd":
        return PowerSGD(model, recipe, parameters)
    hook = _HOOKS[recipe.gradient_compression]
    # Within another function, since torch refuses its bf16 hook by its name where there is no NCCL; Gloo has bf16, too.
    model.register_comm_hook(model.process_group, lambda group, bucket: hook(group, bucket))
    return None


def exchanged_bytes(recipe: Recipe, parameters: Iterable[torch.Tensor]) -> int:
    """Return the bytes of what all workers add up in one update, from PowerSGD's start on.

    >>> weights = [torch.zeros(100, 50), torch.zeros(100)]
    >>> [exchanged_bytes(Recipe(gradient_compression=one), weights) for one in ("none", "bf16", "powersgd")]
    [20400, 10200, 1600]
    """
    total = 0
    for one in parameters:
        factors = factors_of(one.shape, recipe.powersgd_rank) if recipe.gradient_compression == "powersgd" else None
        count = one.numel() if factors is None else factors.rank * (factors.rows + factors.columns)
        total += count * (2 if recipe.gradient_compression in HALVES else one.element_size())
    return total
