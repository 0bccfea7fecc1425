"""Memory for batches that is used again, but never while somebody still holds it.

A new batch of megabytes costs page faults. A pool that gives the same memory again is fast, but ``list(loader)`` would
then hold the same batch many times. So a buffer is given again only when nobody refers to its storage any more: no
variable, no view, no tensor that autograd saved. torch counts these references itself.
"""

from __future__ import annotations

import torch

_MOST = 8  # buffers that are watched; older ones belong to whoever holds them


class Buffers:
    """A few tensors of one shape, each given out only while nobody else holds it.

    >>> buffers = Buffers()
    >>> first = buffers.take((2, 3), torch.float32)
    >>> second = buffers.take((2, 3), torch.float32)
    >>> first.data_ptr() == second.data_ptr()
    False
    >>> address = first.data_ptr()
    >>> del first
    >>> buffers.take((2, 3), torch.float32).data_ptr() == address
    True
    """

    def __init__(self, *, reuse: bool = True, pinned: bool = False) -> None:
        self._count = getattr(torch._C, "_storage_Use_Count", None) if reuse else None
        self._pinned = pinned
        self._kept: list[tuple[torch.Tensor, int, int]] = []  # tensor, its storage, references when free

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Give a tensor with any content, which nobody else holds."""
        if self._count is None:
            return torch.empty(shape, dtype=dtype, pin_memory=self._pinned)
        for tensor, storage, when_free in self._kept:
            if self._count(storage) == when_free and tensor.shape == shape and tensor.dtype == dtype:
                return tensor.view(shape)  # another tensor on the same storage: it raises the count while it lives
        tensor = torch.empty(shape, dtype=dtype, pin_memory=self._pinned)
        storage = tensor.untyped_storage()._cdata
        alike = [kept for kept in self._kept if kept[0].shape == shape and kept[0].dtype == dtype]  # drop the others
        self._kept = [(tensor, storage, self._count(storage)), *alike[: _MOST - 1]]
        return tensor.view(shape)
