"""ReLU and max pooling with their own second derivative: values, first and second derivatives are those of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rueda.examine.curvature.selection import max_pool, relu

DOUBLE = torch.float64
POOLS = {
    "side by side": ([2, 2], [2, 2], [0, 0], [1, 1], False),
    "overlapping": ([3, 3], [2, 2], [0, 0], [1, 1], False),
    "padded": ([3, 2], [3, 1], [1, 1], [1, 1], False),
    "dilated": ([2, 2], [1, 2], [0, 0], [2, 1], False),
    "over the edge": ([2, 2], [2, 2], [0, 0], [1, 1], True),
}
ORDERS = [torch.contiguous_format, torch.channels_last]


def derivatives(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Give the output, the gradient of a curved function of it, and a product with the second derivative."""
    outputs = function(x)
    (first,) = torch.autograd.grad(outputs.tanh().sum(), x, create_graph=True)
    weights = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)
    return [outputs, first, *torch.autograd.grad((first * weights).sum(), x)]


def images(*shape: int, order: torch.memory_format = torch.contiguous_format) -> Tensor:
    found = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    return found.contiguous(memory_format=order).requires_grad_()


@pytest.mark.parametrize("order", ORDERS)
def test_relu(order: torch.memory_format) -> None:
    x = images(3, 4, 5, 6, order=order)
    for found, exact in zip(derivatives(relu, x), derivatives(torch.relu, x), strict=True):
        assert torch.equal(found, exact)
        assert found.stride() == exact.stride()
    assert torch.autograd.gradgradcheck(lambda x: relu(x).tanh(), (images(7),))


@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (2, 1, 5, 5), (1, 4, 6, 3)], ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pool", POOLS)
def test_pooling(pool: str, order: torch.memory_format, shape: tuple[int, ...]) -> None:
    kernel, stride, padding, dilation, ceil = POOLS[pool]
    x = images(*shape, order=order)

    def torchs(x: Tensor) -> Tensor:
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil)

    exact = derivatives(torchs, x)
    for wanted in (torch.preserve_format, *ORDERS):
        found = derivatives(lambda x: max_pool(x, POOLS[pool], wanted), x)  # noqa: B023
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)
        assert found[1].stride() == x.stride()  # what goes on to the layer before keeps its order
        assert wanted == torch.preserve_format or found[0].is_contiguous(memory_format=wanted)


def test_a_view_that_lies_apart_is_pooled() -> None:
    x = images(2, 8, 6, 6)

    def every_other(pooled: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return derivatives(lambda x: pooled(x[:, ::2].transpose(2, 3)), x)

    found = every_other(lambda x: max_pool(x, POOLS["overlapping"]))
    for one, other in zip(found, every_other(lambda x: F.max_pool2d(x, 3, 2)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("order", ORDERS)
def test_pooling_by_finite_differences(order: torch.memory_format) -> None:
    x = images(1, 2, 5, 5, order=order)
    assert torch.autograd.gradgradcheck(lambda x: max_pool(x, POOLS["overlapping"]).tanh(), (x,))
