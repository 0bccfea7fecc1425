"""Build the optimizer that a recipe names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rueda.optim import LAMB, LARC, LARS, AdaScale, NovoGrad, parameter_groups
from rueda.records import Recipe

_FUSED_DEVICES = ("cpu", "cuda", "mps")


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer; weight decay and layer-wise rates do not apply to biases and normalisation layers.

    torch's own optimizers are used in their fused form (one pass over memory) where the device supports it. With
    ``adascale`` the optimizer is wrapped in AdaScale, whose scale is the recipe's number of workers.
    """
    optimizer = _build(recipe, model)
    return AdaScale(optimizer, scale=recipe.workers) if recipe.adascale else optimizer


def _build(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    groups = parameter_groups(model, weight_decay=recipe.weight_decay)
    options: dict[str, Any] = {"lr": recipe.rate}
    if recipe.betas:
        options["betas"] = recipe.betas
    momentum: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
    trust: dict[str, Any] = {} if recipe.trust is None else {"trust": recipe.trust}
    fused: dict[str, Any] = {"fused": all(parameter.device.type in _FUSED_DEVICES for parameter in model.parameters())}
    match recipe.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, **options, **momentum, **fused)
        case "adam":
            return torch.optim.Adam(groups, **options, **fused)
        case "adamw":
            return torch.optim.AdamW(groups, **options, **fused)
        case "lars":
            return LARS(groups, **options, **momentum, **trust)
        case "larc":
            return LARC(torch.optim.SGD(groups, **options, **momentum, **fused), **trust)
        case "lamb":
            return LAMB(groups, **options)
        case "novograd":
            return NovoGrad(groups, **options)
    raise AssertionError(recipe.optimizer)  # a recipe rejects other names
