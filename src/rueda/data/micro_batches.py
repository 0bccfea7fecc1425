"""Micro-batches: the parts of an update's examples that pass through the model at once.

A worker's examples of an update are one micro-batch, or several with gradient accumulation. In a rehearsal one process
has those of several virtual workers. Each is collated by itself, so that sentences are padded to the longest of *their*
micro-batch, as on a real worker; a batch of arrays has one shape and is sliced instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rueda.data.nest import select


class MicroBatch(NamedTuple):
    """A batch as a task's ``collate`` returns it, and the number of examples in it, which only the loader knows."""

    batch: Any
    num_examples: int


WorkerBatches = list[list[MicroBatch]]
"""the micro-batches of each virtual worker; a real worker has those of one: its own"""


def chunks(num_examples: int, micro_batch: int) -> list[slice]:
    """Return which of a worker's examples belong to each micro-batch; the last one may be smaller.

    >>> chunks(5, micro_batch=2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + micro_batch, num_examples)) for start in range(0, num_examples, micro_batch)]


def divide(batch: Any, num_examples: int, micro_batch: int, num_workers: int = 1) -> WorkerBatches:
    """Divide a batch into micro-batches of views; of n virtual workers, worker r has every n-th example from r on.

    >>> import torch
    >>> [[part.batch[0].tolist() for part in parts] for parts in divide((torch.arange(8),), 8, 2, num_workers=2)]
    [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    """
    parts = chunks(num_examples // num_workers, micro_batch)
    if num_workers == 1 and len(parts) == 1:
        return [[MicroBatch(batch, num_examples)]]
    shares = [
        batch if num_workers == 1 else select(batch, slice(rank, None, num_workers)) for rank in range(num_workers)
    ]
    return [[MicroBatch(select(share, part), part.stop - part.start) for part in parts] for share in shares]
