"""Random tensors, and what Gloo makes of them: the truth for tests of collectives.

The tests try 300 cases on 2 and on 3 workers; ``RUEDA_FUZZ`` is another number, and ``make fuzz`` tries 10,000.
"""

from __future__ import annotations

import os
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CASES = int(os.environ.get("RUEDA_FUZZ", "300"))
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool,
)  # fmt: skip
_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
_WIDE = {  # types that Gloo has, and wide enough that a result is rounded once
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
    torch.int16: torch.int32,
}
_TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3.2e-2, torch.float64: 1e-13, torch.float32: 1e-5}


def random_shape(choose: random.Random) -> tuple[int, ...]:
    """Return a shape of up to three dimensions: often small, sometimes empty, now and then larger than a chunk."""
    if choose.random() < 0.02:
        return (choose.randint(500_000, 700_000),)
    if choose.random() < 0.3:
        return (choose.randint(1, 20_000),)
    return tuple(choose.choice([0, 1, 2, 3, 17, 33]) for _ in range(choose.randint(0, 3)))


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Return a random tensor; integers are 0 to 3, so that no sum or product of few overflows."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64 if dtype.itemsize == 8 else None).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 4, shape, generator=generator).to(dtype)


def by_gloo(tensor: Tensor, operation: str, group: Any = None) -> Tensor:
    """Reduce a tensor with Gloo, in a type that it has; the result has that type. A mean of integers is truncated."""
    wide = tensor.contiguous().to(_WIDE.get(tensor.dtype, tensor.dtype), copy=True)
    names = {"sum": "max", "product": "min"} if tensor.dtype == torch.bool else {"mean": "sum"}
    dist.all_reduce(wide, _OPERATIONS[names.get(operation, operation)], group=group)
    if operation == "mean":
        wide.div_(dist.get_world_size(group), rounding_mode=None if wide.is_floating_point() else "trunc")
    return wide


def assert_equal_but_for_rounding(found: Tensor, expected: Tensor, what: str) -> None:
    """Compare a result with that of Gloo; integers must be equal."""
    tolerance = _TOLERANCE.get(found.dtype, 0.0)
    assert found.shape == expected.shape, what
    torch.testing.assert_close(
        found, expected.to(found.dtype), rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )
