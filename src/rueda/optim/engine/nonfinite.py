"""The error for gradients and weights that are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rueda.errors import NonFiniteError


def report(optimizer: str, groups: Sequence[dict[str, Any]], bad: Sequence[Tensor]) -> NonFiniteError:
    """Return an error that names the tensors that were not stepped, if the groups have names (``named_parameters``)."""
    place, first = _place(groups, bad[0])
    shape = "x".join(map(str, first.shape)) or "scalar"
    return NonFiniteError(
        f"{optimizer}.step",
        expected="finite gradients and weights",
        got=f"nan or inf in {len(bad)} tensor(s), first {place} ({shape})",
        do="their weights were not changed: lower the learning rate, clip the gradients, or pass nonfinite='skip'",
    )


def _place(groups: Sequence[dict[str, Any]], tensor: Tensor) -> tuple[str, Tensor]:
    """Return the name or index of a parameter, and the user's parameter itself."""
    owner = tensor if tensor._base is None else tensor._base  # the host path may hold a one-dimensional view
    for number, group in enumerate(groups):
        for index, parameter in enumerate(group["params"]):
            if parameter is tensor or parameter is owner:
                names = group.get("param_names")
                return (str(names[index]) if names else f"number {index} of group {number}"), parameter
    return "an unknown parameter", tensor
