"""Gather, broadcast, exchange and scatter: one entry at a time, from payloads that rode along or over a process group.

Each function takes the entry, the group (None: nothing to send), the payloads of all ranks in rank order (None: they
did not ride), this rank's number among the members, the members, and what the ranks said beside their signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceScatterOptions

from rueda.hvd.core import reduce
from rueda.hvd.core.entries import ALLGATHER, ALLTOALL, BROADCAST, REDUCESCATTER, Entry, from_bytes
from rueda.hvd.core.groups import OPERATIONS


def allgather(
    entry: Entry, group: Any, parts: list[bytes] | None, rank: int, members: tuple[int, ...], extra: Any
) -> list[Tensor]:
    """Give every rank the rows of all."""
    results = []
    start = [0] * len(members)
    for index, tensor in enumerate(entry.tensors):
        rows = [extra[r][index] for r in range(len(members))]
        shape = (sum(rows), *tensor.shape[1:])
        if parts is not None:
            row_bytes = tensor.shape[1:].numel() * tensor.element_size()
            chunks = []
            for r, part in enumerate(parts):
                end = start[r] + rows[r] * row_bytes
                chunks.append(part[start[r] : end])
                start[r] = end
            results.append(from_bytes(b"".join(chunks), tensor.dtype).view(shape))
            continue
        result = tensor.new_empty(shape)
        if group is None:
            result.copy_(tensor)
        elif len(set(rows)) == 1 and result.numel():
            group._allgather_base(as_bytes(result), as_bytes(tensor)).wait()
        else:  # rows differ: each rank sends its own to all
            works = []
            for r, piece in enumerate(result.split(rows)):  # type: ignore[no-untyped-call]
                if r == rank:
                    piece.copy_(tensor)
                if piece.numel():
                    works.append(group.broadcast(as_bytes(piece), r))
            for work in works:
                work.wait()
        results.append(result)
    return results


def broadcast(
    entry: Entry, group: Any, parts: list[bytes] | None, rank: int, members: tuple[int, ...], extra: Any
) -> list[Tensor]:
    """Give every rank the root's tensor."""
    root = members.index(entry.signature.root)
    tensor = entry.tensors[0]
    if parts is not None:
        result = from_bytes(parts[root], tensor.dtype).view(tensor.shape)
    else:
        result = tensor if entry.outputs is not None else tensor.clone()
        if group is not None and result.numel():
            group.broadcast(as_bytes(result), root).wait()
    if entry.outputs is not None:
        overwrite(entry.outputs[0], result)
        return entry.outputs
    return [result]


def alltoall(
    entry: Entry, group: Any, parts: list[bytes] | None, rank: int, members: tuple[int, ...], extra: Any
) -> tuple[Tensor, Tensor]:
    """Give every rank what the others have for it, and how many rows came from each."""
    tensor = entry.tensors[0]
    received = [splits[rank] for splits in extra]
    shape = (sum(received), *tensor.shape[1:])
    row_bytes = tensor.shape[1:].numel() * tensor.element_size()
    if parts is not None:
        chunks = []
        for splits, part in zip(extra, parts, strict=True):
            start = sum(splits[:rank]) * row_bytes
            chunks.append(part[start : start + splits[rank] * row_bytes])
        result = from_bytes(b"".join(chunks), tensor.dtype).view(shape)
    else:
        result = tensor.new_empty(shape)
        if group is None:
            result.copy_(tensor)
        else:
            received_bytes = [rows * row_bytes for rows in received]
            sent_bytes = [rows * row_bytes for rows in extra[rank]]
            group.alltoall_base(as_bytes(result), as_bytes(tensor), received_bytes, sent_bytes).wait()
    return result, torch.tensor(received, dtype=torch.int32)


def reducescatter(
    entry: Entry, group: Any, parts: list[bytes] | None, rank: int, members: tuple[int, ...], extra: Any
) -> list[Tensor]:
    """Give every rank its rows of the reduced tensor."""
    operation, prescale = entry.signature.operation, entry.signature.prescale
    results = []
    start = 0
    for tensor in entry.tensors:
        rows = share(tensor.shape[0], len(members))
        if parts is not None:
            end = start + tensor.nbytes
            pieces = [from_bytes(part[start:end], tensor.dtype) for part in parts]
            if prescale != 1.0:
                pieces = [reduce.scale(piece, prescale) for piece in pieces]
            total = reduce.combine(pieces, operation, [tensor.numel()]).view(tensor.shape)
            own = total.narrow(0, sum(rows[:rank]), rows[rank])
            start = end
        else:
            wire = tensor.to(reduce.travelling_type(tensor.dtype, operation), copy=True)
            reduce.scale(wire, prescale)
            own = wire.narrow(0, sum(rows[:rank]), rows[rank])
            if group is not None:
                how = OPERATIONS[reduce.travelling_operation(tensor.dtype, operation)]
                if len(set(rows)) == 1:
                    own = own.clone()
                    options = ReduceScatterOptions()
                    options.reduceOp = how  # type: ignore[assignment]
                    group._reduce_scatter_base(own, wire, options).wait()
                else:
                    group.allreduce([wire], how).wait()
        own = reduce.finish(own, operation, len(members), entry.signature.postscale)
        results.append(own.to(tensor.dtype, copy=True))
    return results


def share(rows: int, num_ranks: int) -> list[int]:
    """Divide rows among ranks; the first get one more.

    >>> share(7, 3)
    [3, 2, 2]
    """
    return [rows // num_ranks + (rank < rows % num_ranks) for rank in range(num_ranks)]


def overwrite(output: Tensor, value: Tensor) -> None:
    """Copy a result to where it belongs, unless it is there."""
    if output.data_ptr() != value.data_ptr() or output.dtype != value.dtype or not output.is_contiguous():
        target = output.detach() if output.requires_grad else output
        target.copy_(value if value.shape == target.shape else value.view(target.shape))


def as_bytes(tensor: Tensor) -> Any:
    """View a tensor as bytes, since what is only moved may be of any type."""
    return tensor.view(-1).view(torch.uint8)


MOVERS: dict[int, Callable[..., Any]] = {
    ALLGATHER: allgather,
    BROADCAST: broadcast,
    ALLTOALL: alltoall,
    REDUCESCATTER: reducescatter,
}
