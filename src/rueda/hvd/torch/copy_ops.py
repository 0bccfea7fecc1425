"""Collectives that copy data without reducing it: ``allgather``, ``broadcast`` and ``alltoall``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import passes
from rueda.hvd.torch.autograd import differentiable
from rueda.hvd.torch.collective_entries import allgather_entry, alltoall_entry, broadcast_entry, first, run
from rueda.hvd.torch.handles import submit

# allgather


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start an all-gather and return its handle."""
    return submit(allgather_entry([tensor], name, process_set), first)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Return all ranks' tensors concatenated along the first dimension, in which they may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an all-gather of a list of tensors and return its one handle."""
    return submit(allgather_entry(tensors, name, process_set), tuple)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Tensor, ...]:
    """Gather a list of tensors as one collective: the n-th result concatenates all ranks' n-th tensors."""
    return tuple(differentiable(passes.Allgather(name, process_set), tensors))


# broadcast


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast of ``root_rank``'s tensor into a new tensor and return its handle."""
    return submit(broadcast_entry(tensor, root_rank, name, process_set), first)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return a copy of the tensor of ``root_rank``, which is a rank among all workers, not within the process set."""
    return differentiable(passes.Broadcast(root_rank, name, process_set), [tensor])[0]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast that overwrites the tensor with ``root_rank``'s, and return its handle."""
    return submit(broadcast_entry(tensor, root_rank, name, process_set, in_place=True), first)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor with that of ``root_rank``."""
    return run(broadcast_entry(tensor, root_rank, name, process_set, in_place=True))[0]


# alltoall


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an all-to-all and return its handle; the arguments are those of :func:`alltoall`.

    :func:`synchronize` returns the received rows and their number from each rank, also without ``splits``.
    """
    return submit(alltoall_entry(tensor, splits, name, process_set), partial(_with_splits_like, splits))


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its part of this tensor, and return the received parts concatenated in rank order.

    Args:
        tensor: the parts, along the first dimension, in rank order.
        splits: the number of rows for each rank; None: the same number for all.
        name: the tensor's name, by which ranks match it; None: it is matched by the order of submission.
        process_set: the ranks that take part.

    Returns:
        The received tensor; with ``splits``, also the number of rows received from each rank, with the dtype and on the
        device of ``splits`` if that is a tensor, else int32.
    """
    given = [] if splits is None else [torch.as_tensor(splits)]
    output, received = differentiable(passes.Alltoall(name, process_set), [tensor, *given])
    return output if splits is None else _with_splits_like(splits, (output, received))


def _with_splits_like(splits: Any, results: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    output, received = results
    return output, received.to(splits) if isinstance(splits, Tensor) else received
