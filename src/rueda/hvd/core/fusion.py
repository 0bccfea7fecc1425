"""Where tensors that are reduced together lie in a flat buffer, and how they get there and back.

In shared memory the buffer is the slot of this rank, so a tensor is copied once on its way in and once on its way out.
The views of the parts of a buffer cost more to make than to copy, so a layout that is used again keeps them: a group
has only three buffers, the two halves of the slot and one for results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rueda.hvd.core.entries import Key, Signature


class Reduction(NamedTuple):
    """The properties that tensors must share to be reduced in one buffer."""

    operation: int
    prescale: float
    postscale: float
    device: str
    dtype: torch.dtype


def reduction_of(signature: Signature, dtype: torch.dtype) -> Reduction:
    """Return how a tensor of a collective is reduced."""
    return Reduction(signature.operation, signature.prescale, signature.postscale, signature.device, dtype)


class Layout:
    """The places of tensors in a flat buffer, one behind the other.

    Args:
        shapes: their shapes.

    >>> layout, buffer = Layout([(2,), (1, 3)]), torch.empty(5)
    >>> layout.fill(buffer, [torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 4.0, 5.0]])])
    >>> buffer
    tensor([1., 2., 3., 4., 5.])
    >>> layout.views(buffer)[1]
    tensor([[3., 4., 5.]])
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        self._shapes = [torch.Size(shape) for shape in shapes]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._are_flat = all(len(shape) == 1 for shape in self._shapes)
        self._views: dict[int, list[Tensor]] = {}
        self.num_elements = sum(self._sizes)

    def fill(self, buffer: Tensor, tensors: list[Tensor]) -> None:
        """Copy contiguous tensors into a buffer."""
        if self._are_flat:
            torch.cat(tensors, out=buffer)
        else:
            torch._foreach_copy_(self.views(buffer), tensors)

    def take(self, buffer: Tensor, targets: list[Tensor]) -> None:
        """Copy the parts of a buffer into tensors."""
        torch._foreach_copy_(targets, self.views(buffer))

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Return the parts of a buffer; a view keeps its memory, so no other buffer can have its address."""
        address = buffer.data_ptr()
        found = self._views.get(address)
        if found is None:
            with torch.inference_mode(False):
                parts = buffer.split(self._sizes)  # type: ignore[no-untyped-call]
                found = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
            self._views[address] = found
        return found


class Batch(NamedTuple):
    """Tensors that are reduced together: their positions among the entries of a plan, and their layout."""

    reduction: Reduction
    positions: list[int]
    layout: Layout


class Plan(NamedTuple):
    """How repeated all-reduces of one tensor each are run: their keys, and which of them are reduced together."""

    keys: list[Key]
    batches: list[Batch]


def divided(num_bytes: Iterable[int], limit: int) -> list[list[int]]:
    """Divide tensors into batches of at most ``limit`` bytes; return the positions in each. A larger one is alone.

    >>> divided([4, 4, 9, 1, 1], limit=8)
    [[0, 1], [2], [3, 4]]
    """
    batches: list[list[int]] = []
    room = -1
    for position, own_bytes in enumerate(num_bytes):
        if own_bytes > room:
            batches.append([])
            room = limit
        batches[-1].append(position)
        room -= own_bytes
    return batches
