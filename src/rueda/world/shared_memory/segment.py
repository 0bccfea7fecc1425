"""A memory segment that all ranks of a group have mapped, with counters for each rank and a sign of life.

A rank holds a lock on its own byte of the file for as long as it lives (``fcntl`` locks, which the kernel releases when
a process ends in any way, and which a forked child does not inherit). So a rank that is gone is recognised without its
process id, which a zombie would still have.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from rueda.world.host_memory import available_bytes

NUM_COUNTERS = 16  # of 8 bytes: two cache lines for each rank
POSTED, COMBINED, DONE, LEFT, LEAVING, SLEEPS, AWAITS, WHAT = range(8)
"""the counters of a rank: chunks posted, combined and done; whether it has closed the segment; with which bucket it
leaves; whether it sleeps and asks for a datagram; the counter that it sleeps on, counted from 1; and what it has posted
in each chunk of its slot"""

_PAGE_BYTES = 4096
_NONCE_BYTES = 16


class Segment:
    """This rank's view of the segment.

    Args:
        descriptor: the open file, which the segment closes.
        rank: the rank of this worker in the group.
        size: the number of ranks.
        num_bytes: the bytes of data, all slots together.

    Attributes:
        counters: all ranks' counters; those of rank ``r`` begin at ``r * NUM_COUNTERS``.
        memory: the data, as bytes.
        data: the same as a buffer, for sockets.
    """

    def __init__(self, descriptor: int, rank: int, size: int, num_bytes: int) -> None:
        self._descriptor = descriptor
        self.rank = rank
        self.size = size
        self._mapped = mmap.mmap(descriptor, total_bytes(size, num_bytes))
        start = _PAGE_BYTES
        end = start + size * NUM_COUNTERS * 8
        self.counters = memoryview(self._mapped)[start:end].cast("q")
        with torch.inference_mode(False):  # else it could only be written in inference mode
            self.memory: Tensor = torch.frombuffer(
                self._mapped, dtype=torch.uint8, count=num_bytes, offset=_data_offset(size)
            )
        self.data = memoryview(self._mapped)[_data_offset(size) : _data_offset(size) + num_bytes]
        self.closed = False
        weakref.finalize(self, os.close, descriptor)  # not earlier: another thread may be asking for the locks
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, by which other processes open it."""
        return self._descriptor

    @property
    def nonce(self) -> str:
        """The random number that its creator wrote, by which the others know that they opened the right file."""
        return self._mapped[:_NONCE_BYTES].hex()

    def is_gone(self, rank: int) -> bool:
        """Return whether a rank has closed the segment, or its process has ended."""
        if self.closed or self.counters[rank * NUM_COUNTERS + LEFT]:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, rank)
        return True

    def close(self) -> None:
        """Tell the others that this rank no longer takes part; the memory is freed when no view of it is left."""
        self.closed = True
        self.counters[self.rank * NUM_COUNTERS + LEFT] = 1


def total_bytes(size: int, num_bytes: int) -> int:
    """Return the bytes of a segment with its counters."""
    return _data_offset(size) + num_bytes


def create(size: int, num_bytes: int) -> int:
    """Create the file of a segment, with its memory reserved, and return its descriptor.

    Raises:
        OSError: there is not enough memory.
    """
    free = available_bytes()
    if free is not None and num_bytes > free // 2:  # the kernel would end a process later, instead of refusing now
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    descriptor = os.memfd_create("rueda-shared")
    try:
        total = total_bytes(size, num_bytes)
        os.ftruncate(descriptor, total)
        # Without its memory reserved, a write into a segment for which none is left would end the process (SIGBUS).
        os.posix_fallocate(descriptor, 0, total)
        os.pwrite(descriptor, os.urandom(_NONCE_BYTES), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_of(process: int, descriptor: int, is_right: Callable[[os.stat_result], bool]) -> int:
    """Open the file that another process on this host has created.

    In another container, a process of the same number has other files open: pipes, devices, data of the program.

    Args:
        process: the number of the process.
        descriptor: the descriptor of the file there.
        is_right: returns whether what is there may be the file; asked before it is opened.

    Raises:
        OSError: it cannot be opened, or is another file.
    """
    path = f"/proc/{process}/fd/{descriptor}"
    if not is_right(os.stat(path)):
        raise OSError("another file was found")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def open_segment(process: int, descriptor: int, nonce: str, total: int) -> int:
    """Open the file of a segment that another process has created, of ``total`` bytes, and nothing else.

    Raises:
        OSError: it cannot be opened, or is another file.
    """
    opened = open_of(process, descriptor, lambda about: stat.S_ISREG(about.st_mode) and about.st_size == total)
    try:
        if os.pread(opened, _NONCE_BYTES, 0).hex() != nonce:
            raise OSError("another file was found")
    except BaseException:
        os.close(opened)
        raise
    return opened


def _data_offset(size: int) -> int:
    """Return where the data begin: behind the page of the nonce, and the pages of the counters."""
    return _PAGE_BYTES + -(-size * NUM_COUNTERS * 8 // _PAGE_BYTES) * _PAGE_BYTES
