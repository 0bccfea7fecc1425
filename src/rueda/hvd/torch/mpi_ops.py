"""The collectives of ``horovod.torch``.

======================  =======================================================================  ===================
collective              every rank gets                                                          file
======================  =======================================================================  ===================
``allreduce``           the average, sum, minimum, maximum, product or Adasum of all tensors     ``reducing``
``allgather``           the tensors of all, one after the other along the first dimension        ``moving``
``broadcast``           the tensor of one rank                                                   ``moving``
``alltoall``            from every rank the part that is meant for it                            ``moving``
``reducescatter``       its part of the reduced tensor                                           ``scattering``
``barrier``, ``join``   the others' company                                                      ``meeting``
======================  =======================================================================  ===================

Names with a trailing underscore work in place; ``_async`` returns a handle for :func:`poll` and :func:`synchronize`;
``grouped_`` takes a list of tensors, which are negotiated and sent as one. Tensors are matched by name: ranks may
submit them in any order. Without names, the n-th unnamed collective of a kind meets the n-th of the other ranks.
Gradients flow through all that return a new tensor; for the total loss, the sum over all ranks' losses, they are exact.
"""

from __future__ import annotations

from rueda.hvd.basics import *  # noqa: F403  scripts import them from here, too
from rueda.hvd.common.process_sets import ProcessSet, global_process_set  # noqa: F401
from rueda.hvd.torch.compression import Compression  # noqa: F401
from rueda.hvd.torch.handles import poll, synchronize
from rueda.hvd.torch.meeting import barrier, join
from rueda.hvd.torch.moving import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from rueda.hvd.torch.operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    handle_average_backwards_compatibility,
)
from rueda.hvd.torch.reducing import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from rueda.hvd.torch.scattering import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from rueda.hvd.torch.sparse import sparse_allreduce_async

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "handle_average_backwards_compatibility", "join", "poll", "reducescatter",
    "reducescatter_async", "sparse_allreduce_async", "synchronize",
]  # fmt: skip
