"""Counters of what travels between two workers: the bytes of the tensors, and the bytes that the kernel saw leave.

The tensors are exchanged by Gloo over TCP, not through the shared memory that Rueda prefers on one machine, so that
the operating system sees every byte, as a network between two machines would.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Wire:
    """Exchanges tensors with the other worker, and counts their bytes."""

    def __init__(self) -> None:
        self.tensor_bytes = 0
        """bytes of the tensors that this worker gave to be sent or reduced"""
        self._begin = written_bytes()

    def reset(self) -> None:
        """Count from here on."""
        self.tensor_bytes, self._begin = 0, written_bytes()

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this process has written to its sockets, as the kernel counts them; None where it does not."""
        now = written_bytes()
        return None if now is None or self._begin is None else now - self._begin

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor with the sum over the workers."""
        self.tensor_bytes += tensor.nbytes
        dist.all_reduce(tensor)
        return tensor

    def send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        """Begin to send a tensor; the function that is returned waits until it has left."""
        self.tensor_bytes += tensor.nbytes
        tensor = tensor.contiguous()
        work = dist.isend(tensor, to)

        def finish() -> None:
            if work is not None:
                work.wait()

        return finish

    def receive(self, like: Tensor, source: int) -> Tensor:
        """Wait for a tensor of the shape of ``like``."""
        found = torch.empty_like(like)
        dist.recv(found, source)
        return found

    def average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket of gradients, as DistributedDataParallel does by default, and count its bytes."""
        gradients = bucket.buffer()
        self.tensor_bytes += gradients.nbytes
        gradients.div_(dist.get_world_size())
        future = dist.all_reduce(gradients, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def written_bytes() -> int | None:
    """Return the bytes that this process has written to files and sockets since its start; None if not on Linux."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return int(text.split("wchar:")[1].split()[0])
