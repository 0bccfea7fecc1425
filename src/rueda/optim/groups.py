"""Split a model's parameters into weights and, in another group, biases and normalisation parameters.

The norm of a bias, or of the scale of a normalisation layer, says little about its layer: weight decay of such a
parameter costs accuracy, and a layer-wise rate computed from its norm is mostly noise. Goyal et al. 2017 exclude them
from weight decay, You et al. 2017 and 2019 also from layer-wise adaptation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


def parameter_groups(
    model: nn.Module,
    *,
    weight_decay: float = 0.0,
    exclude: Callable[[str, nn.Parameter], bool] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Split a model's trainable parameters into those that are decayed and adapted, and those that are not.

    Biases, the parameters of normalisation layers, all parameters with at most one dimension, and those for which
    ``exclude`` returns True are neither decayed nor adapted. Shared parameters appear once. torch's own optimizers
    accept the groups as well; they ignore ``adapt``.

    Args:
        model: the model; for FSDP2, after ``fully_shard``.
        weight_decay: the weight decay of the first group; the second has 0.
        exclude: called with the name and the parameter; returns True for further parameters to leave out.
        options: further keys for both groups, such as ``lr``.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
    >>> for group in parameter_groups(model, weight_decay=1e-4):
    ...     print(group["weight_decay"], group["adapt"], group["param_names"])
    0.0001 True ['0.weight', '3.weight']
    0.0 False ['0.bias', '1.weight', '1.bias', '3.bias']
    """
    seen: set[int] = set()
    inside: list[tuple[str, nn.Parameter]] = []
    outside: list[tuple[str, nn.Parameter]] = []
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix=prefix, recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            is_left_out = (
                parameter.dim() <= 1
                or isinstance(module, _NORMS)
                or name.rpartition(".")[2] == "bias"
                or (exclude is not None and exclude(name, parameter))
            )
            (outside if is_left_out else inside).append((name, parameter))
    groups = []
    for members, decay, adapt in ((inside, weight_decay, True), (outside, 0.0, False)):
        if members:
            names, parameters = map(list, zip(*members, strict=True))
            groups.append(
                {"params": parameters, "param_names": names, "weight_decay": decay, "adapt": adapt, **options}
            )
    return groups
