"""Layers with fast second derivatives, substituted while a graph is built.

A product with the Hessian is a backward pass through the graph of a gradient. torch's own second derivatives are right
and general, but for the layers of a CNN they do much needless work; these layers are replaced, while values and
derivatives stay the same:

* convolutions (:mod:`rueda.examine.curvature.convolution`);
* ReLU and max pooling (:mod:`rueda.examine.curvature.selection`), and pooling after ReLU is done before it, since the
  two commute, max(relu(a), relu(b)) = relu(max(a, b)), and ReLU then processes a quarter of the numbers;
* a pooling that is flattened afterwards writes its output in the contiguous format at once, since the conversion from
  channels last would take as long as both layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rueda.examine.curvature.convolution import convolve
from rueda.examine.curvature.selection import max_pool, relu

_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3, F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}


class FastSecondDerivatives(TorchFunctionMode):
    """A mode that replaces layers while a graph is built that will be differentiated twice.

    >>> x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    >>> w = torch.randn(3, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    >>> with FastSecondDerivatives():
    ...     torch.autograd.gradgradcheck(lambda w: F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2).tanh(), (w,))
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, _Made] = {}
        self._ways: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
            **dict.fromkeys((F.relu, torch.relu, Tensor.relu), self._relu),
            **dict.fromkeys((F.max_pool2d, torch.max_pool2d), self._max_pool),
            **dict.fromkeys((torch.flatten, Tensor.flatten), self._flatten),
            **{call: partial(_convolution, dimensions) for call, dimensions in _CONVOLUTIONS.items()},
        }

    def __exit__(self, *what: Any) -> None:
        self._made.clear()  # frees the tensors that are not part of the graph
        super().__exit__(*what)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace a function that has a faster version; call every other one unchanged."""
        given = dict(kwargs or {})
        way = self._ways.get(function)
        found = None if way is None else way(*args, **given)
        return function(*args, **given) if found is None else found

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        return None if inplace or not input.requires_grad else self._make(relu, input)

    def _max_pool(
        self, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Tensor | None:  # fmt: skip
        if return_indices or input.dim() != 4 or not input.requires_grad:
            return None
        kernel = _each(kernel_size, 2)
        settings = (kernel, _each(stride, 2) if stride else kernel, _each(padding, 2), _each(dilation, 2), ceil_mode)
        made = self._how(input)
        if made is not None and made.way is relu:
            return self._make(lambda x, *order: relu(max_pool(x, settings, *order), keep_input=True), made.source)
        return self._make(lambda x, *order: max_pool(x, settings, *order), input)

    def _flatten(self, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor | None:
        made = self._how(input)
        if made is None or made.way is relu or input.is_contiguous():
            return None
        return made.way(made.source, torch.contiguous_format).flatten(start_dim, end_dim)

    def _make(self, way: Callable[..., Tensor], source: Tensor) -> Tensor:
        result = way(source)
        self._made[id(result)] = _Made(way, source, result, (source._version, result._version))
        return result

    def _how(self, tensor: Tensor) -> _Made | None:
        """Return how a tensor was made here, unless it or its source was written to since."""
        made = self._made.get(id(tensor))
        return made if made is not None and made.versions == (made.source._version, tensor._version) else None


class _Made(NamedTuple):
    """How a tensor was made, so that the next layer may start from its source instead."""

    way: Callable[..., Tensor]
    source: Tensor
    result: Tensor
    """kept alive, so that no other tensor gets its id"""
    versions: tuple[int, int]


def _convolution(
    dimensions: int, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor | None:  # fmt: skip
    if input.dim() != dimensions + 2 or isinstance(padding, str):
        return None
    stride, padding, dilation = (_each(value, dimensions) for value in (stride, padding, dilation))
    return convolve(input, weight, bias, (stride, padding, dilation, groups))


def _each(value: int | Iterable[int], dimensions: int) -> list[int]:
    sizes = [value] if isinstance(value, int) else [int(size) for size in value]
    return sizes * dimensions if len(sizes) == 1 else sizes
