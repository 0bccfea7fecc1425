"""Small verbs on lists of tensors, for the lanes.

``ok`` is a vector with one flag a tensor, or None where all are known to be finite: flags stay on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Factor = float | Sequence[float] | Tensor  # one for all, or one for each tensor


def multiply_(tensors: Sequence[Tensor], factor: Factor) -> None:
    """Scale each tensor in place, by one number or by its own.

    >>> pair = [torch.ones(2), torch.ones(1)]
    >>> multiply_(pair, torch.tensor([2.0, 3.0]))
    >>> pair
    [tensor([2., 2.]), tensor([3.])]
    """
    torch._foreach_mul_(list(tensors), _each(tensors, factor))


def multiplied(tensors: Sequence[Tensor], factor: Factor) -> list[Tensor]:
    """Return each tensor scaled, by one number or by its own."""
    return list(torch._foreach_mul(list(tensors), _each(tensors, factor)))


def cleaned(tensors: Sequence[Tensor], ok: Tensor | None) -> Sequence[Tensor]:
    """Return the tensors with zeros for those that are not ok (a factor of 0 would keep NaN)."""
    if ok is None:
        return tensors
    return [torch.where(flag, tensor, 0.0) for flag, tensor in zip(ok.unbind(), tensors, strict=True)]


def chosen(ok: Tensor | None, value: float | Tensor, otherwise: float) -> float | Tensor:
    """Return a factor for each tensor: ``value``, or ``otherwise`` where it is skipped (1 for what must stay).

    float64 where there is any: a Python number in ``torch.where`` would be rounded to float32.

    >>> chosen(None, 0.9, 1.0), chosen(torch.tensor([True, False]), 0.9, 1.0)
    (0.9, tensor([0.9000, 1.0000], dtype=torch.float64))
    """
    if ok is None:
        return value
    wide = torch.float32 if ok.device.type == "mps" else torch.float64
    return torch.where(ok, torch.as_tensor(value, dtype=wide, device=ok.device), otherwise)


def _each(tensors: Sequence[Tensor], factor: Factor) -> Any:
    if isinstance(factor, Tensor) and factor.dim():
        return list(factor.to(tensors[0].dtype).unbind())
    return list(factor) if isinstance(factor, Sequence) else factor
