"""Build the optimizer that a recipe names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rueda.errors import TaskError
from rueda.optim import LAMB, LARC, LARS, AdaScale, NovoGrad, parameter_groups
from rueda.records import Recipe

_FUSED_DEVICES = ("cpu", "cuda", "mps")


def build_optimizer(
    recipe: Recipe, model: nn.Module, own: Callable[[nn.Module, Recipe], torch.optim.Optimizer] | None = None
) -> torch.optim.Optimizer:
    """Build the optimizer; weight decay and layer-wise rates do not apply to biases and normalisation layers.

    torch's own optimizers are used in their fused form (one pass over memory) where the device supports it. With
    ``adascale`` the optimizer is wrapped in AdaScale, whose scale is the recipe's number of workers.

    Args:
        recipe: names the optimizer and its options.
        model: the model; its parameters that require a gradient are trained.
        own: the task's function that builds an optimizer, which takes the place of the recipe's.

    Raises:
        TaskError: no parameter requires a gradient, or the task's own optimizer leaves one out.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TaskError("the model: expected parameters that require a gradient, got none; do not freeze all of them")
    optimizer = _build(recipe, model) if own is None else _checked(own(model, recipe), model)
    return AdaScale(optimizer, scale=recipe.workers) if recipe.adascale else optimizer


def _build(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    groups = parameter_groups(model, weight_decay=recipe.weight_decay)
    options: dict[str, Any] = {"lr": recipe.rate}
    if recipe.betas:
        options["betas"] = recipe.betas
    momentum: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
    trust: dict[str, Any] = {} if recipe.trust is None else {"trust": recipe.trust}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused: dict[str, Any] = {"fused": all(parameter.device.type in _FUSED_DEVICES for parameter in trained)}
    is_divided = any(hasattr(parameter, "placements") for parameter in trained)
    sgd_options = {"foreach": True} if is_divided else fused  # torch 2.13 has no fused SGD of a DTensor
    match recipe.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, **options, **momentum, **sgd_options)
        case "adam":
            return torch.optim.Adam(groups, **options, **fused)
        case "adamw":
            return torch.optim.AdamW(groups, **options, **fused)
        case "lars":
            return LARS(groups, **options, **momentum, **trust)
        case "larc":
            return LARC(torch.optim.SGD(groups, **options, **momentum, **sgd_options), **trust)
        case "lamb":
            return LAMB(groups, **options)
        case "novograd":
            return NovoGrad(groups, **options)
    raise AssertionError(recipe.optimizer)  # a recipe rejects other names


def leave_out_whole_updates(optimizer: torch.optim.Optimizer) -> None:
    """Let a gradient scaler leave out an update of SGD as a whole, instead of telling the fused kernel to do nothing.

    The fused kernel makes its momentum of uninitialised memory at the first step, counts on being run, and takes what
    lies there for momentum at the next one: a first gradient that is not finite, usual with fp16, ruins the weights
    (torch 2.13). Fused Adam begins with zeros. A wrapper such as LARC does not offer the kernel to the scaler.
    """
    if isinstance(optimizer, torch.optim.SGD):
        optimizer._step_supports_amp_scaling = False


def rate_ratios(optimizer: torch.optim.Optimizer, rate: float) -> list[float]:
    """Return the rate of each parameter group in relation to that of the recipe, which the schedule preserves.

    >>> model = nn.Linear(1, 1)
    >>> groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.125}]
    >>> rate_ratios(torch.optim.SGD(groups), 0.5)
    [1.0, 0.25]
    """
    return [group["lr"] / rate for group in optimizer.param_groups]


def _checked(optimizer: object, model: nn.Module) -> torch.optim.Optimizer:
    """Return a task's own optimizer; refuse one that leaves out parameters, which would silently not be trained."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        expected, do = "a torch optimizer", "return it from the function"
        raise TaskError("Task.optimizer", expected=expected, got=type(optimizer).__name__, do=do)
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, one in model.named_parameters() if one.requires_grad and id(one) not in known]
    if missing:
        more = f" and {len(missing) - 1} more" * (len(missing) > 1)
        do = "add it to a group, or freeze it in the model: requires_grad_(False)"
        raise TaskError("Task.optimizer", expected="all parameters that require a gradient",
                        got=f"none for {missing[0]}{more}", do=do)  # fmt: skip
    return optimizer
