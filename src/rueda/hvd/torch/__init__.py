"""``horovod.torch``: what a PyTorch script for Horovod imports as ``hvd``.

===============================================  ==============================================================
``init``, ``rank``, ``size``, ``shutdown`` ...   the world (:mod:`rueda.hvd.basics`)
``allreduce``, ``allgather``, ``broadcast`` ...  tensors, matched by name (:mod:`.mpi_ops`)
``DistributedOptimizer``                         any optimizer, on averaged gradients (:mod:`.optimizer`)
``broadcast_parameters`` ...                     the state of one for all (:mod:`.functions`)
``SyncBatchNorm``                                statistics over all workers (:mod:`.sync_batch_norm`)
``Compression``                                  half the bytes (:mod:`.compression`)
``ProcessSet``, ``add_process_set`` ...          collectives among some (:mod:`rueda.hvd.common.process_sets`)
===============================================  ==============================================================
"""

from __future__ import annotations

from typing import Any

from rueda.hvd.alias import watch
from rueda.hvd.basics import (
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
)
from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.hvd.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from rueda.hvd.torch.compression import Compression
from rueda.hvd.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from rueda.hvd.torch.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from rueda.hvd.torch.optimizer import DistributedOptimizer
from rueda.hvd.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

watch()  # so that `from horovod.torch import elastic` says what is the matter


def __getattr__(name: str) -> Any:
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.torch", name)
