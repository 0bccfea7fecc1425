"""All-gather, broadcast, all-to-all and reduce-scatter of one entry, from inline payloads or over a process group.

Each function takes the entry, the process group (None if there is nothing to send), the inline payloads of all ranks in
rank order (None if there are none), the position of this rank among the members, the members, and the ``extra`` of all
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceScatterOptions

from rueda.hvd.core import reduce
from rueda.hvd.core.entries import ALLGATHER, ALLTOALL, BROADCAST, REDUCESCATTER, Entry, from_bytes
from rueda.hvd.core.process_groups import OPERATIONS


def allgather(
    entry: Entry, group: Any, parts: list[bytes] | None, rank: int, members: tuple[int, ...], extra: Any
) -> list[Tensor]:
    """Return the rows of all ranks, for each tensor of the entry."""
    results = []
    starts = [0] * len(members)
    for index, tensor in enumerate(entry.tensors):
        rows = [counts[index] for counts in extra]
        shape = (sum(rows), *tensor.shape[1:])
        if parts is not None:
            ends = [start + count * _row_bytes(tensor) for start, count in zip(starts, rows, strict=True)]
            data = b"".join([part[start:end] for part, start, end in zip(parts, starts, ends, strict=True)])
            results.append(from_bytes(data, tensor.dtype).view(shape))
            starts = ends
            continue
        result = tensor.new_empty(shape)
        if group is None:
            result.copy_(tensor)
        elif len(set(rows)) == 1 and result.numel():
            group._allgather_base(as_bytes(result), as_bytes(tensor)).wait()
        else:  # the numbers of rows differ: each rank broadcasts its own
            pieces = result.split(rows)  # type: ignore[no-untyped-call]
            pieces[rank].copy_(tensor)
            for work in [group.broadcast(as_bytes(piece), r) for r, piece in enumerate(pieces) if piece.numel()]:
                work.wait()
        results.append(result)
    return results


def broadcast(
    entry: Entry, group: Any, parts: list[bytes] | None, rank: int, members: tuple[int, ...], extra: Any
) -> list[Tensor]:
    """Return the tensor of the root rank."""
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
    """Return the rows that the other ranks sent to this one, and the number of rows from each."""
    tensor = entry.tensors[0]
    received = [splits[rank] for splits in extra]
    shape = (sum(received), *tensor.shape[1:])
    row_bytes = _row_bytes(tensor)
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
    """Return this rank's rows of the reduced tensors."""
    operation, prescale = entry.signature.operation, entry.signature.prescale
    results = []
    start = 0
    for tensor in entry.tensors:
        rows = divide_rows(tensor.shape[0], len(members))
        if parts is not None:
            end = start + tensor.nbytes
            values = [reduce.scale(from_bytes(part[start:end], tensor.dtype), prescale) for part in parts]
            buffer = reduce.combine(values, operation, [tensor.numel()]).view(tensor.shape)
            start = end
        else:
            buffer = tensor.to(reduce.communication_dtype(tensor.dtype, operation), copy=True)
            reduce.scale(buffer, prescale)
        own = buffer.narrow(0, sum(rows[:rank]), rows[rank])
        if group is not None:
            group_operation = OPERATIONS[reduce.communication_operation(tensor.dtype, operation)]
            if len(set(rows)) == 1:
                own = own.clone()
                options = ReduceScatterOptions()
                options.reduceOp = group_operation  # type: ignore[assignment]
                group._reduce_scatter_base(own, buffer, options).wait()
            else:
                group.allreduce([buffer], group_operation).wait()
        own = reduce.finish(own, operation, len(members), entry.signature.postscale)
        results.append(own.to(tensor.dtype, copy=True))
    return results


def divide_rows(rows: int, num_ranks: int) -> list[int]:
    """Divide rows among ranks; the first ranks get one more if the division has a remainder.

    >>> divide_rows(7, 3)
    [3, 2, 2]
    """
    return [rows // num_ranks + (rank < rows % num_ranks) for rank in range(num_ranks)]


def overwrite(output: Tensor, value: Tensor) -> None:
    """Copy a result into an output tensor, unless both share their memory."""
    if output.data_ptr() != value.data_ptr() or output.dtype != value.dtype or not output.is_contiguous():
        target = output.detach() if output.requires_grad else output
        target.copy_(value if value.shape == target.shape else value.view(target.shape))


def as_bytes(tensor: Tensor) -> Any:
    """Return a view of a tensor as bytes, which process groups can send for every dtype."""
    return tensor.view(-1).view(torch.uint8)


def _row_bytes(tensor: Tensor) -> int:
    return tensor.shape[1:].numel() * tensor.element_size()


COLLECTIVES: dict[int, Callable[..., Any]] = {
    ALLGATHER: allgather,
    BROADCAST: broadcast,
    ALLTOALL: alltoall,
    REDUCESCATTER: reducescatter,
}
