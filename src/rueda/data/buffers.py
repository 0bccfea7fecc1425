"""A pool of memory for batches, which is reused only when nothing refers to it.

Allocating megabytes for each batch causes page faults. A pool that simply reused its memory would be fast, but
all batches in ``list(loader)`` would then share the same memory. So a buffer is reused only when nothing refers to its
storage any more: no variable, no view, no tensor that autograd saved. torch counts these references.
"""

from __future__ import annotations

import torch

_MOST = 8  # buffers in the pool; older ones are freed when their users drop them


class Buffers:
    """A pool of tensors of one shape and dtype, none of which is handed out again while it is in use.

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
        """Return an uninitialised tensor that is not in use elsewhere."""
        if self._count is None:
            return torch.empty(shape, dtype=dtype, pin_memory=self._pinned)
        for tensor, storage, when_free in self._kept:
            if self._count(storage) == when_free and tensor.shape == shape and tensor.dtype == dtype:
                return tensor.view(shape)  # a new tensor on the same storage, which increases the count while it exists
        tensor = torch.empty(shape, dtype=dtype, pin_memory=self._pinned)
        storage = tensor.untyped_storage()._cdata
        alike = [kept for kept in self._kept if kept[0].shape == shape and kept[0].dtype == dtype]  # drop the others
        self._kept = [(tensor, storage, self._count(storage)), *alike[: _MOST - 1]]
        return tensor.view(shape)
