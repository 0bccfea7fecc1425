"""Buckets of gradients that DistributedDataParallel has allocated, moved into memory that all ranks have mapped.

torch can move the storage of a tensor into shared memory in place: every view of it sees the move, also those within
DistributedDataParallel, and the file is unlinked at once. The ranks open each other's files through ``/proc``. From
then on the buckets are averaged where they are, which moves two times their bytes instead of five times
(:class:`rueda.world.shared_memory.operations.AllReduceInPlace`).

DistributedDataParallel allocates its buckets twice: before the first step, and before the second one, in the order in
which gradients became ready. A bucket that was allocated anew is moved anew.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import torch
from torch import Tensor

from rueda.world.host_memory import available_bytes
from rueda.world.shared_memory.group import SharedGroup
from rueda.world.shared_memory.segment import open_of

_FOLDER = "/dev/shm"  # where torch creates the files
_LEAST_BYTES = 1 << 18
"""smaller buckets go through the slots: there the ranks wait for each other once, and not twice"""


class _Mapped(NamedTuple):
    """A bucket that all ranks have mapped."""

    address: int
    """of this rank's bucket"""
    others: dict[int, Tensor]
    """the buckets of the other ranks, by rank"""


class MappedBuckets:
    """The buckets of one model, as far as all ranks have mapped them; every rank asks for them in the same order.

    Args:
        group: the ranks.
    """

    def __init__(self, group: SharedGroup) -> None:
        self._group = group
        self._mapped: dict[int, _Mapped] = {}  # by the bucket's index
        self._possible = True

    def of(self, index: int, buffer: Tensor) -> list[Tensor] | None:
        """Return the buckets of all ranks; None if this one goes through the slots, on all ranks.

        Args:
            index: the number of the bucket in its model.
            buffer: this rank's bucket.
        """
        storage = buffer.untyped_storage()
        if not self._possible or storage.nbytes() < _LEAST_BYTES:
            return None
        found = self._mapped.get(index)
        if found is None or found.address != buffer.data_ptr() or not storage.is_shared():
            self._mapped.pop(index, None)
            found = self._connect(buffer)
            if found is None:
                self._possible = False
                return None
            self._mapped[index] = found
        return [found.others.get(rank, buffer) for rank in range(self._group.size)]

    def _connect(self, buffer: Tensor) -> _Mapped | None:
        """Move the bucket of each rank and open those of the others; return None on all ranks if one of them cannot."""
        group, own = self._group, _moved(buffer, self._group.size)
        # No rank may read what another one has not moved yet, so that all of them exchange where it is.
        rows = [torch.empty(len(own), dtype=torch.int64) for _ in range(group.size)]
        group.all_gather(rows, torch.tensor(own))
        files = [_File(*row.tolist()) for row in rows]
        others: dict[int, Tensor] = {}
        if all(file.num_bytes == buffer.nbytes for file in files):
            for rank, file in enumerate(files):
                if rank != group.rank and (opened := _opened(file, buffer)) is not None:
                    others[rank] = opened
        all_opened = torch.tensor([int(len(others) == group.size - 1)])
        group.all_reduce(all_opened, "min")
        return _Mapped(buffer.data_ptr(), others) if all_opened.item() else None


class _File(NamedTuple):
    """Where a rank's bucket is."""

    process: int = 0
    descriptor: int = 0
    inode: int = 0
    device: int = 0
    num_bytes: int = -1

    def is_it(self, about: os.stat_result) -> bool:
        """Return whether this is the file, and not one of a process of that number in another container."""
        return (about.st_ino, about.st_dev) == (self.inode, self.device)


def _moved(buffer: Tensor, size: int) -> _File:
    """Move a bucket into shared memory; a file of -1 bytes says that it is not possible."""
    storage = buffer.untyped_storage()
    try:
        room = os.statvfs(_FOLDER)
        free = min(room.f_bavail * room.f_frsize, available_bytes() or 0)
        # A write into a file for which no memory is left would end the process (SIGBUS).
        if buffer.storage_offset() or buffer.nbytes != storage.nbytes() or 2 * size * buffer.nbytes > free:
            return _File()
        descriptor = storage._share_fd_cpu_()[0]
        about = os.fstat(descriptor)
    except (OSError, RuntimeError):
        return _File()
    return _File(os.getpid(), descriptor, about.st_ino, about.st_dev, buffer.nbytes)


def _opened(file: _File, like: Tensor) -> Tensor | None:
    """Map the bucket of another rank; None if it cannot be opened."""
    try:
        descriptor = open_of(file.process, file.descriptor, file.is_it)
    except OSError:
        return None
    try:
        mapped = mmap.mmap(descriptor, file.num_bytes)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    with torch.inference_mode(False):
        return torch.frombuffer(mapped, dtype=like.dtype)
