"""Convolutions whose second derivative is made of the fast kernels.

torch differentiates the gradient of a convolution by convolutions in which images and channels change places: the
kernel is then as large as the image, and the library has no fast path for it. Every term of that second derivative is
itself one of the three things that are fast, a forward pass, or a gradient of one for the input or the weight. With u
and v the vectors that come with the gradients of the input x and the weight w, and g that of the output:

    to g:  conv(u, w) + conv(x, v)        to x:  input gradient (g, v)        to w:  weight gradient (u, g)

Inside :class:`FastSecondDerivatives` calls of ``torch.nn.functional.conv1d`` to ``conv3d`` are replaced accordingly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_CALLS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3, F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}


class FastSecondDerivatives(TorchFunctionMode):
    """Replaces convolutions while a graph is built that will be differentiated twice.

    >>> x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    >>> w = torch.randn(3, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    >>> with FastSecondDerivatives():
    ...     torch.autograd.gradgradcheck(lambda w: F.conv2d(x, w, padding=1).tanh(), (w,))
    True
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace a convolution that we know how to; leave everything else."""
        given = dict(kwargs or {})
        dimensions = _CALLS.get(function)
        if dimensions is not None:
            names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            known = {**dict(zip(names, args, strict=False)), **given}
            batched = known["input"].dim() == dimensions + 2
            if batched and not isinstance(known.get("padding", 0), str):
                sizes = [
                    _each(known.get(name, usual), dimensions) for name, usual in zip(names[3:6], (1, 0, 1), strict=True)
                ]
                settings = (*sizes, int(known.get("groups", 1)))
                given_tensors = (known["input"], known["weight"], known.get("bias"))
                return _Convolution.apply(*given_tensors, settings)  # type: ignore[no-untyped-call]
        return function(*args, **given)


def _each(value: int | Iterable[int], dimensions: int) -> list[int]:
    sizes = [value] if isinstance(value, int) else [int(size) for size in value]
    return sizes * dimensions if len(sizes) == 1 else sizes


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, settings: Any) -> Tensor:
    stride, padding, dilation, groups = settings
    none = [0] * len(stride)
    return torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, none, groups)  # type: ignore[no-any-return]


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, settings: Any, mask: list[bool]) -> tuple[Tensor | None, ...]:
    stride, padding, dilation, groups = settings
    none, sizes = [0] * len(stride), [weight.shape[0]]
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        grad, x, weight, sizes, stride, padding, dilation, False, none, groups, mask
    )


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: Any) -> Tensor:
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
        context: Any, grad: Tensor, x: Tensor, weight: Tensor, settings: Any, wanted: tuple[bool, ...]
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
            parts = [] if u is None else [_forward(u, weight, None, settings)]
            parts += [] if v is None else [_forward(x, v, None, settings)]
            parts += (
                [] if b is None else [b.reshape(-1, *[1] * (grad.dim() - 2)).expand(grad.shape[1:]).expand_as(grad)]
            )
            for part in parts:
                to_grad = part if to_grad is None else to_grad + part
        if context.needs_input_grad[1] and v is not None:
            to_x = _gradients(grad, x, v, settings, [True, False, False])[0]
        if context.needs_input_grad[2] and u is not None:
            to_weight = _gradients(grad, u, weight, settings, [False, True, False])[1]
        return to_grad, to_x, to_weight, None, None
