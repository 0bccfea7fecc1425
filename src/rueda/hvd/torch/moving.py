"""The families that move tensors and do not reckon: ``allgather``, ``broadcast`` and ``alltoall``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch import gradients
from rueda.hvd.torch.handles import all_results, first_result, launch
from rueda.hvd.torch.submissions import broadcasting, exchanging, gathering, run

# allgather


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to gather the ranks' tensors; gives a handle."""
    return launch(gathering([tensor], name, process_set), first_result)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Give every rank the tensors of all, one after the other; their first dimensions may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to gather lists of tensors; gives one handle."""
    return launch(gathering(tensors, name, process_set), all_results)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Gather lists of tensors: the n-th result holds all ranks' n-th tensors."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(gradients.Allgather.apply(name, process_set, *tensors))  # type: ignore[no-untyped-call]
    return run(gathering(tensors, name, process_set))


# broadcast


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to give every rank a copy of the root's tensor; gives a handle."""
    return launch(broadcasting(tensor, None, root_rank, name, process_set), first_result)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Give every rank a copy of the tensor of ``root_rank`` (its number among all workers)."""
    if tensor.requires_grad and torch.is_grad_enabled():
        result: Tensor = gradients.Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return run(broadcasting(tensor, None, root_rank, name, process_set))[0]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to overwrite the tensor with the root's; gives a handle."""
    return launch(broadcasting(tensor, [tensor], root_rank, name, process_set), lambda _: tensor)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor with that of ``root_rank``."""
    run(broadcasting(tensor, [tensor], root_rank, name, process_set))
    return tensor


# alltoall


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to exchange parts between all pairs of ranks; gives a handle."""
    return launch(exchanging(tensor, splits, name, process_set), first_result if splits is None else all_results)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its part of this tensor and give the parts received, one after the other.

    Args:
        tensor: the parts, along the first dimension, in rank order.
        splits: how many rows each rank gets; None: the same number for all.
        name: what the tensor is matched by; None: by order.
        process_set: among whom.

    Returns:
        The tensor received; with ``splits``, also how many rows came from each rank.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        output, received = gradients.Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    else:
        output, received = run(exchanging(tensor, splits, name, process_set))
    return output if splits is None else (output, received)
