"""The batches of a stream in their order, read in this process or in others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from rueda.data.dataset_loader import unchanged
from rueda.data.stream_reader import Collating, LoaderProcess, Read, StreamReader

Item = tuple[Read, list[list[Any]] | None, int]
"""what was read, collated if in another process, and the number of its examples"""


class InThisProcess:
    """The batches of one worker, from readers that take turns; they are collated when they are taken."""

    collates_late = True
    num_filled = 0
    """batches of this epoch for which the share was read again, since it had ended before those of other workers"""

    def __init__(self, readers: list[StreamReader], local_batch: int, collate: Collating) -> None:
        self._readers, self._local_batch, self._collate = deque(readers), local_batch, collate

    def next(self) -> Item | None:
        """Return the next batch; None at the end."""
        while self._readers:
            reader = self._readers.popleft()
            read = reader.read(self._local_batch)
            if read is not None:
                self._readers.append(reader)
                return read, None, len(read.examples)
        return None

    def parts(self, read: Read, micro_batch: int | None) -> list[list[Any]]:
        """Collate what was read, in micro-batches of this size."""
        return replace(self._collate, micro_batch=micro_batch)(read)


class InProcesses:
    """The batches of one worker, read and collated in other processes."""

    collates_late = False
    num_filled = 0

    def __init__(self, dataset: LoaderProcess, **options: Any) -> None:
        loader = DataLoader(dataset, batch_size=None, collate_fn=unchanged, **options)
        self._batches: Iterator[tuple[Read, list[list[Any]], int]] = iter(loader)

    def next(self) -> Item | None:
        """Return the next batch; None at the end."""
        return next(self._batches, None)

    def parts(self, read: Read, micro_batch: int | None) -> list[list[Any]]:
        """Never called: the processes have collated the batch."""
        raise NotImplementedError


Sequence = InThisProcess | InProcesses
