"""The collectives of ``horovod.torch``.

======================  ==================================================================  =======================
collective              what every rank receives                                            file
======================  ==================================================================  =======================
``allreduce``           the average, sum, minimum, maximum, product or Adasum of all        ``allreduce_ops``
                        ranks' tensors
``allgather``           the tensors of all ranks, concatenated along the first dimension    ``copy_ops``
``broadcast``           the tensor of one rank                                              ``copy_ops``
``alltoall``            from every rank the part that is meant for it                       ``copy_ops``
``reducescatter``       its part of the reduced tensor                                      ``reducescatter_ops``
``barrier``, ``join``   nothing: they block until every rank has called them                ``barrier_ops``
======================  ==================================================================  =======================

Functions whose name ends in an underscore work in place. Those with ``_async`` return a handle for :func:`poll` and
:func:`synchronize`. Those with ``grouped_`` take a list of tensors, which is negotiated and sent as one. Tensors are
matched by name, so ranks may submit them in any order; the n-th unnamed collective of a kind is matched with the n-th
unnamed one of the other ranks. Gradients flow through every collective that returns a new tensor, with Horovod's
factors (:mod:`rueda.hvd.torch.passes`); :mod:`rueda.hvd.torch.exact` has them without.
"""

from __future__ import annotations

from rueda.hvd.basics import *  # noqa: F403  scripts import them from here, too
from rueda.hvd.common.process_sets import ProcessSet, global_process_set  # noqa: F401
from rueda.hvd.torch.allreduce_ops import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from rueda.hvd.torch.barrier_ops import barrier, join
from rueda.hvd.torch.compression import Compression  # noqa: F401
from rueda.hvd.torch.copy_ops import (
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
from rueda.hvd.torch.handles import poll, synchronize
from rueda.hvd.torch.reduce_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    handle_average_backwards_compatibility,
)
from rueda.hvd.torch.reducescatter_ops import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from rueda.hvd.torch.sparse_ops import sparse_allreduce_async

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "handle_average_backwards_compatibility", "join", "poll", "reducescatter",
    "reducescatter_async", "sparse_allreduce_async", "synchronize",
]  # fmt: skip
