"""The collectives of ``horovod.torch``.

=================================  ===========================================================================
collective                         every rank gets
=================================  ===========================================================================
``allreduce``                      the average, sum, minimum, maximum, product or Adasum of all tensors
``allgather``                      the tensors of all, one after the other along the first dimension
``broadcast``                      the tensor of one rank
``alltoall``                       from every rank the part that is meant for it
``reducescatter``                  its part of the reduced tensor
``barrier``, ``join``              the others' company
=================================  ===========================================================================

Names with a trailing underscore work in place; ``_async`` returns a handle for :func:`poll` and :func:`synchronize`;
``grouped_`` takes a list of tensors, which are negotiated and sent as one. Tensors are matched by name: ranks may
submit them in any order. Without names, the n-th unnamed collective of a kind meets the n-th of the other ranks.
Gradients flow through all that return a new tensor; for the total loss, the sum over all ranks' losses, they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.hvd.basics import (  # noqa: F401  scripts import them from here, too
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)  # fmt: skip
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.core import entries as kinds
from rueda.hvd.core import life
from rueda.hvd.core.entries import Entry
from rueda.hvd.torch import gradients
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.handles import launch, make_entry, poll, synchronize

Average, Sum, Adasum, Min, Max, Product = range(6)

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "handle_average_backwards_compatibility", "join", "poll", "reducescatter",
    "reducescatter_async", "sparse_allreduce_async", "synchronize",
]  # fmt: skip


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Turn the old ``average=`` and the new ``op=`` into an operation; without either it is the average.

    >>> handle_average_backwards_compatibility(None, False) == Sum
    True
    """
    if op is not None:
        if average is not None:
            raise ValueError("op and average: expected one of them, got both; drop average")
        if op not in range(6):
            raise ValueError(f"op: expected Average, Sum, Adasum, Min, Max or Product, got {op!r}")
        return op
    return Sum if average is False else Average


# allreduce


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine the ranks' tensors into a new one; gives a handle."""
    operation = handle_average_backwards_compatibility(op, average)
    entry = _reducing([tensor], None, name, operation, prescale_factor, postscale_factor, process_set)
    return launch(entry, _first)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors into a new one, equal on all.

    Args:
        tensor: of the same shape and type on all ranks.
        average: the old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        name: what the tensor is matched by; None: by order.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Adasum, Min, Max or Product. Whole numbers are averaged towards zero.
        prescale_factor: what every tensor is multiplied by before.
        postscale_factor: what the result is multiplied by.
        process_set: among whom.
    """
    operation = handle_average_backwards_compatibility(op, average)
    small, context = compression.compress(tensor)
    settings = (operation, prescale_factor, postscale_factor, process_set)
    if small.requires_grad and torch.is_grad_enabled():
        result = gradients.Allreduce.apply(name, settings, small)[0]  # type: ignore[no-untyped-call]
    else:
        result = run_reducing([small], None, name, *settings)[0]
    return compression.decompress(result, context)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine the ranks' tensors in place; gives a handle."""
    operation = handle_average_backwards_compatibility(op, average)
    entry = _reducing([tensor], [tensor], name, operation, prescale_factor, postscale_factor, process_set)
    return launch(entry, lambda _: tensor)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors in place."""
    operation = handle_average_backwards_compatibility(op, average)
    run_reducing([tensor], [tensor], name, operation, prescale_factor, postscale_factor, process_set)
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine lists of tensors into new ones; gives one handle."""
    operation = handle_average_backwards_compatibility(op, average)
    entry = _reducing(tensors, None, name, operation, prescale_factor, postscale_factor, process_set)
    return launch(entry, _all)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine lists of tensors into new ones, equal on all ranks."""
    operation = handle_average_backwards_compatibility(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    small = [pair[0] for pair in pairs]
    settings = (operation, prescale_factor, postscale_factor, process_set)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in small):
        results = list(gradients.Allreduce.apply(name, settings, *small))  # type: ignore[no-untyped-call]
    else:
        results = run_reducing(small, None, name, *settings)
    return [compression.decompress(result, pair[1]) for result, pair in zip(results, pairs, strict=True)]


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine lists of tensors in place; gives one handle."""
    operation = handle_average_backwards_compatibility(op, average)
    outputs = list(tensors)
    entry = _reducing(tensors, outputs, name, operation, prescale_factor, postscale_factor, process_set)
    return launch(entry, lambda _: outputs)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine lists of tensors in place."""
    operation = handle_average_backwards_compatibility(op, average)
    outputs = list(tensors)
    run_reducing(tensors, outputs, name, operation, prescale_factor, postscale_factor, process_set)
    return outputs


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start to sum or average sparse tensors by gathering their entries; call what it returns for the result."""
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: expected op Average or Sum; densify the tensor for the others")
    dense = tensor.sparse_dim()
    # The number of dense dimensions says how many rows an index has; it must survive an empty tensor.
    indices = allgather_async(tensor._indices().t().contiguous(), _suffixed(name, "indices"), process_set)
    values = allgather_async(tensor._values().contiguous(), _suffixed(name, "values"), process_set)
    shape = tensor.size()

    def finish() -> Tensor:
        all_values, all_indices = synchronize(values), synchronize(indices)
        if op == Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(all_indices.reshape(-1, dense).t(), all_values, shape, check_invariants=False)

    return finish


# allgather


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to gather the ranks' tensors; gives a handle."""
    return launch(_gathering([tensor], name, process_set), _first)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Give every rank the tensors of all, one after the other; their first dimensions may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to gather lists of tensors; gives one handle."""
    return launch(_gathering(tensors, name, process_set), _all)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Gather lists of tensors: the n-th result holds all ranks' n-th tensors."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(gradients.Allgather.apply(name, process_set, *tensors))  # type: ignore[no-untyped-call]
    return run_gathering(tensors, name, process_set)


# broadcast


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to give every rank a copy of the root's tensor; gives a handle."""
    return launch(_broadcasting(tensor, None, root_rank, name, process_set), _first)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Give every rank a copy of the tensor of ``root_rank`` (its number among all workers)."""
    if tensor.requires_grad and torch.is_grad_enabled():
        result: Tensor = gradients.Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return run_broadcasting(tensor, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to overwrite the tensor with the root's; gives a handle."""
    return launch(_broadcasting(tensor, [tensor], root_rank, name, process_set), lambda _: tensor)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor with that of ``root_rank``."""
    life.engine().run(_broadcasting(tensor, [tensor], root_rank, name, process_set))
    return tensor


# alltoall


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to exchange parts between all pairs of ranks; gives a handle."""
    return launch(_exchanging(tensor, splits, name, process_set), _first if splits is None else _all)


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
        output, received = run_exchanging(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


# reducescatter


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to combine the tensors and give each rank its part; gives a handle."""
    return launch(_scattering([tensor], name, op, prescale_factor, postscale_factor, process_set), _first)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Combine the tensors and give each rank its part of the rows; where they do not divide, the first get one more."""
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]  # fmt: skip


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to combine lists of tensors and give each rank its part of each; gives one handle."""
    return launch(_scattering(tensors, name, op, prescale_factor, postscale_factor, process_set), _all)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Combine lists of tensors and give each rank its part of each."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    small = [pair[0] for pair in pairs]
    settings = (op, prescale_factor, postscale_factor, process_set)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in small):
        results = list(gradients.Reducescatter.apply(name, settings, *small))  # type: ignore[no-untyped-call]
    else:
        results = run_scattering(small, name, *settings)
    return [compression.decompress(result, pair[1]) for result, pair in zip(results, pairs, strict=True)]


# Meeting the others.


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here."""
    life.engine().run(make_entry(kinds.BARRIER, [], process_set, None))


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until the others have said so too.

    Until then it takes part in their allreduces with zeros; averages are still over all ranks.

    Args:
        device: accepted for Horovod's sake; zeros are made where the tensors are.

    Returns:
        The rank that joined last, the same on all.
    """
    return life.engine().join()


# How the collectives above are made into entries; the gradients need them, too.


def run_reducing(
    tensors: Sequence[Tensor],
    outputs: list[Tensor] | None,
    name: str | None,
    operation: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Combine now."""
    entry = _reducing(tensors, outputs, name, operation, prescale, postscale, process_set)
    result: list[Tensor] = life.engine().run(entry)
    return result


def run_gathering(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> list[Tensor]:
    """Gather now."""
    result: list[Tensor] = life.engine().run(_gathering(tensors, name, process_set))
    return result


def run_broadcasting(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    """Broadcast now, into a new tensor."""
    result: list[Tensor] = life.engine().run(_broadcasting(tensor, None, root_rank, name, process_set))
    return result[0]


def run_exchanging(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> tuple[Tensor, Tensor]:
    """Exchange now."""
    output, received = life.engine().run(_exchanging(tensor, splits, name, process_set))
    return output, received


def run_scattering(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Tensor]:
    """Reduce and scatter now."""
    result: list[Tensor] = life.engine().run(_scattering(tensors, name, op, prescale, postscale, process_set))
    return result


def _reducing(
    tensors: Sequence[Tensor],
    outputs: list[Tensor] | None,
    name: str | None,
    operation: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Entry:
    if operation == Adasum and not all(tensor.is_floating_point() for tensor in tensors):
        raise ValueError(f"allreduce {name or ''}: expected floating-point tensors for Adasum; convert them first")
    return make_entry(
        kinds.ALLREDUCE, tensors, process_set, name,
        outputs=outputs, operation=operation, prescale=float(prescale), postscale=float(postscale),
    )  # fmt: skip


def _gathering(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> Entry:
    rows = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors]
    return make_entry(kinds.ALLGATHER, rows, process_set, name, extra=[row.shape[0] for row in rows])


def _broadcasting(
    tensor: Tensor, outputs: list[Tensor] | None, root: int, name: str | None, process_set: ProcessSet
) -> Entry:
    if root not in process_set.members():
        raise ValueError(
            f"broadcast {name or ''}: expected a root rank among {list(process_set.members())}, got {root}; choose one"
        )
    return make_entry(kinds.BROADCAST, [tensor], process_set, name, outputs=outputs, root=root)


def _exchanging(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Entry:
    num_ranks = process_set.size()
    if tensor.dim() == 0:
        raise ValueError(f"alltoall {name or ''}: expected a tensor of at least one dimension, got a scalar")
    rows = tensor.shape[0]
    if splits is None:
        if rows % num_ranks:
            raise ValueError(
                f"alltoall {name or ''}: expected rows that {num_ranks} ranks can divide, got {rows}; give splits"
            )
        parts = [rows // num_ranks] * num_ranks
    else:
        parts = [int(part) for part in (splits.tolist() if isinstance(splits, Tensor) else splits)]
    if len(parts) != num_ranks or min(parts) < 0 or sum(parts) != rows:
        raise ValueError(
            f"alltoall {name or ''}: expected {num_ranks} splits that sum to {rows} rows, got {parts}; correct them"
        )
    return make_entry(kinds.ALLTOALL, [tensor], process_set, name, extra=parts)


def _scattering(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Entry:
    if op == Adasum or op not in range(6):
        raise ValueError(f"reducescatter {name or ''}: expected op Average, Sum, Min, Max or Product, got {op!r}")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"reducescatter {name or ''}: expected a tensor of at least one dimension, got a scalar")
    return make_entry(
        kinds.REDUCESCATTER, tensors, process_set, name,
        operation=op, prescale=float(prescale), postscale=float(postscale),
    )  # fmt: skip


def _suffixed(name: str | None, suffix: str) -> str | None:
    return None if name is None else f"{name}.{suffix}"


def _first(results: Sequence[Any]) -> Any:
    return results[0]


def _all(results: Any) -> Any:
    return results
