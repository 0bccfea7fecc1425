"""What happens to a gradient or weight whose norm is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rueda.errors import NonFiniteError


def report(optimizer: str, groups: Sequence[dict[str, Any]], bad: Sequence[Tensor]) -> NonFiniteError:
    """Say which tensors were left alone, by name where the groups carry names (``named_parameters``)."""
    place, first = _place(groups, bad[0])
    shape = "x".join(map(str, first.shape)) or "scalar"
    return NonFiniteError(
        f"{optimizer}.step",
        expected="finite gradients and weights",
        got=f"nan or inf in {len(bad)} tensor(s), first {place} ({shape})",
        do="their weights were left as they were: lower the rate, clip the gradients, or pass nonfinite='skip'",
    )


def _place(groups: Sequence[dict[str, Any]], tensor: Tensor) -> tuple[str, Tensor]:
    """Return the name or number of a parameter, and the parameter as the user holds it."""
    owner = tensor if tensor._base is None else tensor._base  # the host path may hold a flat view
    for number, group in enumerate(groups):
        for index, parameter in enumerate(group["params"]):
            if parameter is tensor or parameter is owner:
                names = group.get("param_names")
                return (str(names[index]) if names else f"number {index} of group {number}"), parameter
    return "of unknown place", tensor
