"""Layers in place of torch's: whatever a model does with them, its derivatives stay what they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rueda.examine.curvature.second_derivatives import FastSecondDerivatives

DOUBLE = torch.float64


def relu_is_used_twice(x: Tensor) -> Tensor:
    active = F.relu(x)
    return F.max_pool2d(active, 2).flatten(1) + active.mean((2, 3)).repeat(1, 9)


def source_is_written_to(x: Tensor) -> Tensor:
    source = x * 2
    active = source.relu()
    source.neg_()
    return F.max_pool2d(active, 2).flatten(1) + source.mean()


def pool_is_written_to(x: Tensor) -> Tensor:
    pooled = F.max_pool2d(x, 2)
    pooled *= 3.0
    return torch.flatten(pooled, 1)


def pool_after_relu_is_written_to(x: Tensor) -> Tensor:
    pooled = F.max_pool2d(F.relu(x), 2)
    pooled *= 3.0
    return pooled.flatten(1)


def pool_is_used_twice(x: Tensor) -> Tensor:
    pooled = torch.max_pool2d(x.relu(), 3, 2, padding=1)
    return pooled.flatten(1) * pooled.square().mean()


def relu_in_place(x: Tensor) -> Tensor:
    return nn.MaxPool2d(2)(nn.ReLU(inplace=True)(x * 2)).flatten(1)


def one_image(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x[0]), 2).flatten()


def places_are_wanted(x: Tensor) -> Tensor:
    pooled, places = F.max_pool2d(F.relu(x), 2, return_indices=True)
    return (pooled * (1 + places)).flatten(1)


def flattened_otherwise(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x), kernel_size=(2, 3), stride=(2, 3)).flatten(start_dim=2, end_dim=3)


MODELS = [
    relu_is_used_twice, source_is_written_to, pool_is_written_to, pool_after_relu_is_written_to, pool_is_used_twice,
    relu_in_place, one_image, places_are_wanted, flattened_otherwise,
]  # fmt: skip


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("model", MODELS)
def test_all_derivatives_are_torchs(model: Callable[[Tensor], Tensor], order: torch.memory_format) -> None:
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(3, 2, 6, 6, generator=draws, dtype=DOUBLE).contiguous(memory_format=order)
    weight = torch.randn(4, 2, 3, 3, generator=draws, dtype=DOUBLE, requires_grad=True)
    vector = torch.randn(4, 2, 3, 3, generator=draws, dtype=DOUBLE)

    def derivatives() -> list[Tensor]:
        outputs = model(F.conv2d(images, weight, padding=1))
        (first,) = torch.autograd.grad(outputs.tanh().sum(), weight, create_graph=True)
        return [outputs, first, *torch.autograd.grad(first, weight, vector)]

    exact = derivatives()
    with FastSecondDerivatives():
        found = derivatives()
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_layers_are_replaced_and_pooling_comes_first() -> None:
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    with FastSecondDerivatives():
        pooled = nn.MaxPool2d(2)(nn.ReLU()(x))
        flattened = pooled.flatten(1)
    assert pooled.grad_fn is not None and pooled.grad_fn.name() == "_ReluBackward"
    assert pooled.grad_fn.next_functions[0][0].name() == "_MaxPoolBackward"
    assert flattened.data_ptr() != pooled.data_ptr()
    # No turning of the memory order stands between the flattened output and ReLU.
    assert flattened.grad_fn is not None and flattened.grad_fn.next_functions[0][0].name() == "_ReluBackward"


def test_nothing_is_held_afterwards() -> None:
    import weakref

    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    with FastSecondDerivatives() as mode:
        active = F.relu(x)
        pooled = F.max_pool2d(active, 2)
        gone = weakref.ref(active)
        del active
    assert mode is not None and gone() is None
    assert pooled.requires_grad
