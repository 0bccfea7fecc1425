"""Micro-batches: the parts of an update's examples that pass through the model at once.

A worker's examples of an update are one micro-batch, or several with gradient accumulation. In a rehearsal one process
has those of several virtual workers. Each is collated by itself, so that sentences are padded to the longest of *their*
micro-batch, as on a real worker; a batch of arrays has one shape and is sliced instead
(:meth:`rueda.data.stream.Stream.next_parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rueda.data import Arrays, Loader
from rueda.data.nest import concatenate, map_tensors, select, tensors
from rueda.errors import DataError


class MicroBatch(NamedTuple):
    """A batch of a task, and the number of examples in it, which cannot always be seen from its tensors."""

    batch: Any
    num_examples: int


WorkerBatches = list[list[MicroBatch]]
"""the micro-batches of each virtual worker; a real worker has those of one: its own"""


def next_micro_batches(loader: Loader, data: object, micro_batch: int, dtype: torch.dtype) -> WorkerBatches | None:
    """Return the micro-batches of the next update, or None once at the end of the epoch.

    Args:
        loader: the loader of the training.
        data: what it loads; batches of :class:`rueda.Arrays` have the dtype already.
        micro_batch: examples of a micro-batch; the last one of a worker may have fewer.
        dtype: the dtype of all floating-point tensors.
    """
    before = loader.position
    parts = loader.next_parts(micro_batch)
    if parts is None:
        return None
    per_worker = loader.num_own(loader.position - before) // len(parts)
    counts = [min(micro_batch, per_worker - start) for start in range(0, per_worker, micro_batch)]
    if isinstance(data, Arrays):
        return [list(map(MicroBatch, worker, counts)) for worker in parts]
    return [[MicroBatch(convert_floats(batch, dtype), n) for batch, n in zip(w, counts, strict=True)] for w in parts]


def convert_floats(batch: Any, dtype: torch.dtype) -> Any:
    """Convert the floating-point tensors of a batch to a dtype: numpy's are float64 unless something else was said.

    >>> convert_floats({"x": torch.ones(1, dtype=torch.float64), "y": torch.ones(1, dtype=torch.int64)}, torch.float32)
    {'x': tensor([1.]), 'y': tensor([1])}
    """
    if all(tensor.dtype == dtype or not tensor.is_floating_point() for tensor in tensors(batch)):
        return batch
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, batch)


def halves(part: MicroBatch) -> list[MicroBatch] | None:
    """Divide a micro-batch into two halves of its examples; return None if its tensors cannot be divided."""
    half = -(-part.num_examples // 2)
    if any(tensor.dim() and len(tensor) != part.num_examples for tensor in _strided(part.batch)):
        return None
    try:
        first, second = select(part.batch, slice(0, half)), select(part.batch, slice(half, part.num_examples))
    except (DataError, RuntimeError):
        return None
    return [MicroBatch(first, half), MicroBatch(second, part.num_examples - half)]


def join(parts: Sequence[MicroBatch]) -> MicroBatch | None:
    """Join the micro-batches of several virtual workers, so that they pass through the model at once.

    Returns:
        None if they have different shapes, such as sentences that were padded to different lengths.
    """
    if len(parts) == 1:
        return parts[0]
    shapes = [_row_shapes(part.batch) for part in parts]
    if None in shapes or any(one != shapes[0] for one in shapes):
        return None
    return MicroBatch(concatenate([part.batch for part in parts]), sum(part.num_examples for part in parts))


def can_join(batches: WorkerBatches) -> bool:
    """Return whether the micro-batches of all virtual workers can be joined."""
    first = [_row_shapes(part.batch) for part in batches[0]]
    return None not in first and all([_row_shapes(part.batch) for part in parts] == first for parts in batches[1:])


def _row_shapes(batch: Any) -> list[torch.Size] | None:
    """Return the shapes of the tensors without their first dimension; None if one has no first dimension."""
    found = _strided(batch)
    return [tensor.shape[1:] for tensor in found] if all(tensor.dim() for tensor in found) else None


def _strided(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch; a scalar, which can be neither divided nor joined, replaces each nested tensor."""
    return [torch.empty(()) if tensor.is_nested else tensor for tensor in tensors(batch)]
