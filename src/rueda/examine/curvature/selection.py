"""ReLU and max pooling with second derivatives that avoid needless work.

Both layers *select*: each output is one of the inputs (or zero), and a small step does not change which one. With S the
matrix of zeros and ones that selects, the output is Sx and the gradient S'g; the derivative of that gradient is S with
respect to g, and zero with respect to x. torch computes the same, but

* for ReLU it creates a tensor of these zeros and adds it;
* for pooling it selects with ``gather`` in the default memory format, whatever the format of the activations is, and
  all later operations have to convert between the two. Here the graph keeps only the positions in memory, which one
  ``index_select`` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Settings = tuple[list[int], list[int], list[int], list[int], bool]
"""kernel, stride, padding, dilation, and whether a window may hang over the edge (``ceil_mode``)"""
Layout = tuple[Sequence[int], Sequence[int]]
"""sizes and strides"""


def relu(x: Tensor, *, keep_input: bool = False) -> Tensor:
    """Return max(x, 0).

    Args:
        x: any tensor.
        keep_input: save the input for the derivative instead of the output, so that the output may be overwritten.

    >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
    >>> relu(x).tolist(), torch.autograd.grad(relu(x).sum(), x)[0].tolist()
    ([0.0, 2.0], [0.0, 1.0])
    """
    return _Relu.apply(x, keep_input)  # type: ignore[no-any-return, no-untyped-call]


def max_pool(x: Tensor, settings: Settings, order: torch.memory_format = torch.preserve_format) -> Tensor:
    """Return the largest number of each window, [N, C, H, W] -> [N, C, h, w].

    Args:
        x: the images.
        settings: see :data:`Settings`.
        order: the memory format of the output; none is slower than another.

    >>> x = torch.arange(16.0).reshape(1, 1, 4, 4).requires_grad_()
    >>> max_pool(x, ([2, 2], [2, 2], [0, 0], [1, 1], False)).flatten().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """
    plain = x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)
    return _MaxPool.apply(x if plain else x.contiguous(), settings, order)  # type: ignore[no-any-return, no-untyped-call]


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, keep_input: bool) -> Tensor:
        active = torch.relu(x)
        context.save_for_backward(x if keep_input else active)  # both are above zero in the same places
        return active

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> Any:
        return _Masked.apply(grads[0], context.saved_tensors[0].detach()), None  # type: ignore[no-untyped-call]


class _Masked(torch.autograd.Function):
    """Return g where the output is above zero, and zero elsewhere; for ReLU, S' equals S."""

    @staticmethod
    def forward(context: Any, grad: Tensor, active: Tensor) -> Tensor:
        context.save_for_backward(active)
        return _masked(grad, active)

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Any, ...]:
        return _masked(grads[0], context.saved_tensors[0]), None


def _masked(grad: Tensor, active: Tensor) -> Tensor:
    # Mixed memory formats make this operation and the following ones slow.
    return torch.ops.aten.threshold_backward(_in_order(grad, _layout(active)), active, 0)  # type: ignore[no-any-return]


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, settings: Settings, order: torch.memory_format) -> Tensor:
        largest, indices = torch.ops.aten.max_pool2d_with_indices(x, *settings)
        if order != torch.preserve_format:
            largest, indices = largest.contiguous(memory_format=order), indices.contiguous(memory_format=order)
        context.save_for_backward(_positions(x, indices))
        context.inputs, context.outputs = _layout(x), _layout(indices)
        return largest  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> Any:
        (positions,) = context.saved_tensors
        return _Spread.apply(grads[0], positions, context.inputs, context.outputs), None, None  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """S'g: adds each number at the position of its window's maximum; overlapping windows add up."""

    @staticmethod
    def forward(context: Any, grad: Tensor, positions: Tensor, inputs: Layout, outputs: Layout) -> Tensor:
        context.save_for_backward(positions)
        context.inputs, context.outputs = inputs, outputs
        spread = grad.new_empty_strided(*inputs).zero_()
        _memory(spread).index_add_(0, positions, _memory(_in_order(grad, outputs)))
        return spread

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Any, ...]:
        (positions,) = context.saved_tensors
        selected = grads[0].new_empty_strided(*context.outputs)
        torch.index_select(_memory(_in_order(grads[0], context.inputs)), 0, positions, out=_memory(selected))
        return selected, None, None, None


def _positions(x: Tensor, indices: Tensor) -> Tensor:
    """Convert positions in a plane (row x width + column) to positions in memory, in the order of ``indices``."""
    num_images, channels, height, width = x.shape
    plane = height * width
    by_channel, by_pixel = (plane, 1) if x.is_contiguous() else (1, channels)
    image = torch.arange(num_images, device=x.device).view(-1, 1, 1, 1) * (channels * plane)
    channel = torch.arange(channels, device=x.device).view(1, -1, 1, 1) * by_channel
    found = torch.add(image + channel, indices, alpha=by_pixel)
    return _memory(_in_order(found, _layout(indices))).to(torch.int32 if x.numel() < 2**31 else torch.int64)


def _layout(tensor: Tensor) -> Layout:
    return tensor.shape, tensor.stride()


def _in_order(tensor: Tensor, layout: Layout) -> Tensor:
    """Convert a tensor to a memory layout."""
    return tensor if tensor.stride() == layout[1] else tensor.new_empty_strided(*layout).copy_(tensor)


def _memory(tensor: Tensor) -> Tensor:
    """View a dense tensor as a flat vector in its memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))
