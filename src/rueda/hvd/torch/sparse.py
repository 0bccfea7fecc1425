"""``sparse_allreduce_async``: sparse tensors are summed by gathering their entries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.torch.handles import synchronize
from rueda.hvd.torch.moving import allgather_async
from rueda.hvd.torch.operations import Average, Sum
from rueda.hvd.torch.submissions import suffixed


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start to sum or average sparse tensors by gathering their entries; call what it returns for the result."""
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: expected op Average or Sum; densify the tensor for the others")
    num_sparse = tensor.sparse_dim()  # how long an index is; must survive tensors without entries
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
