"""Convolutions whose second derivative uses the fast kernels.

torch differentiates the gradient of a convolution by convolutions in which images and channels change places: the
kernel is then as large as the image, for which the library has no fast kernel. But every term of that second derivative
is itself a forward pass, an input gradient or a weight gradient of a convolution, all of which are fast. With u and v
the tangents of the gradients of the input x and the weight w, and g the gradient of the output:

    to g:  conv(u, w) + conv(x, v)        to x:  input gradient (g, v)        to w:  weight gradient (u, g)

The gradient of the bias is a sum over g, so its tangent is a bias of the second convolution, at no cost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Settings = tuple[list[int], list[int], list[int], int]
"""stride, padding and dilation, each with a number per dimension, and groups"""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> Tensor:
    """Convolve, [N, C, ...] with [D, C / groups, ...] -> [N, D, ...].

    >>> x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    >>> w = torch.randn(3, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    >>> settings = ([1, 1], [1, 1], [1, 1], 1)
    >>> torch.autograd.gradgradcheck(lambda w: convolve(x, w, None, settings).tanh(), (w,))
    True
    """
    return _Convolution.apply(x, weight, bias, settings)  # type: ignore[no-any-return, no-untyped-call]


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> Tensor:
    stride, padding, dilation, groups = settings
    none = [0] * len(stride)
    return torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, none, groups)  # type: ignore[no-any-return]


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, settings: Settings, mask: list[bool]
) -> tuple[Tensor | None, ...]:
    stride, padding, dilation, groups = settings
    none, sizes = [0] * len(stride), [weight.shape[0]]
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        grad, x, weight, sizes, stride, padding, dilation, False, none, groups, mask
    )


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> Tensor:
        context.save_for_backward(x, weight)
        context.settings, context.has_bias = settings, bias is not None
        return _forward(x, weight, bias, settings)

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, weight = context.saved_tensors
        wanted = (*context.needs_input_grad[:2], context.has_bias and context.needs_input_grad[2])
        return (*_Gradients.apply(grads[0], x, weight, context.settings, wanted), None)  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, grad: Tensor, x: Tensor, weight: Tensor, settings: Settings, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        context.save_for_backward(grad, x, weight)
        context.settings = settings
        context.set_materialize_grads(False)
        return tuple(_gradients(grad, x, weight, settings, list(wanted)))

    @staticmethod
    def backward(context: Any, *tangents: Tensor | None) -> tuple[Any, ...]:
        grad, x, weight = context.saved_tensors
        u, v, b = tangents
        settings = context.settings
        to_grad = to_x = to_weight = None
        if context.needs_input_grad[0]:
            if v is not None:
                to_grad = _forward(x, v, b, settings)
            if u is not None:
                other = _forward(u, weight, b if v is None else None, settings)
                to_grad = other if to_grad is None else to_grad.add_(other)
            if to_grad is None and b is not None:
                to_grad = b.reshape(-1, *[1] * (grad.dim() - 2)).expand_as(grad)
        if context.needs_input_grad[1] and v is not None:
            to_x = _gradients(grad, x, v, settings, [True, False, False])[0]
        if context.needs_input_grad[2] and u is not None:
            to_weight = _gradients(grad, u, weight, settings, [False, True, False])[1]
        return to_grad, to_x, to_weight, None, None
