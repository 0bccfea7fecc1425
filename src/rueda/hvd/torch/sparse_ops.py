"""``sparse_allreduce_async``: sums sparse tensors by gathering the indices and values of all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch.collective_entries import suffixed
from rueda.hvd.torch.copy_ops import allgather_async
from rueda.hvd.torch.handles import synchronize
from rueda.hvd.torch.reduce_ops import Average, Sum


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start the sum or average of sparse tensors; the returned function is the handle, and calling it waits.

    Args:
        tensor: a sparse tensor, of the same shape on all ranks; the number of its entries may differ.
        name: the tensor's name; None: it is matched by the order of submission.
        op: Average or Sum.
        process_set: the ranks that take part.
    """
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: expected op Average or Sum; for others, call tensor.to_dense() first")
    num_sparse = tensor.sparse_dim()  # the length of an index, which a tensor without entries does not show
    indices = allgather_async(tensor._indices().t().contiguous(), suffixed(name, "indices"), process_set)
    values = allgather_async(tensor._values().contiguous(), suffixed(name, "values"), process_set)
    shape = tensor.size()

    def finish() -> Tensor:
        all_values, all_indices = synchronize(values), synchronize(indices)
        if op == Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(
            all_indices.reshape(-1, num_sparse).t(), all_values, shape, check_invariants=False
        )

    return finish
