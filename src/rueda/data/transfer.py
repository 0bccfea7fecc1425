"""Copy batches to a GPU while it computes.

A copy on the stream of the training begins only after all kernels that are queued there, although it does not depend on
them. On a stream of its own it runs beside them; the kernels that use the batch wait for it on the device, and the host
waits for nothing. The copy must start from pinned memory, which the GPU can read by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rueda.data.nest import map_tensors, tensors


class Transfer:
    """Copies tensors to one device.

    >>> Transfer(torch.device("cpu"))(torch.ones(2))
    (tensor([1., 1.]),)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors on the device, for use on its current stream."""
        if self._device.type != "cuda":
            return tuple(tensor.to(self._device, non_blocking=True) for tensor in tensors)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            sent = tuple(tensor.to(self._device, non_blocking=True) for tensor in tensors)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in sent:
            tensor.record_stream(current)  # its memory is reused only after the kernels that are queued there
        return sent

    def batch(self, batch: Any) -> Any:
        """Return a batch of any structure with all its tensors on the device.

        >>> Transfer(torch.device("cpu")).batch({"ids": [torch.ones(1)], "text": "one"})
        {'ids': [tensor([1.])], 'text': 'one'}
        """
        sent = iter(self(*tensors(batch)))
        return map_tensors(lambda _: next(sent), batch)
