"""Horovod's interface for JAX: collectives of pytrees, among processes with one device each.

Horovod itself has none; the names are those of its other modules::

    import rueda.hvd.jax as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optax.adam(1e-3 * hvd.size()))
    params = hvd.broadcast_parameters(params)

===============================================  =======================================================================
``init``, ``rank``, ``size``, ``shutdown`` ...   connect the workers; their ranks and number (:mod:`rueda.hvd.basics`)
``allreduce``, ``allgather``, ``broadcast`` ...  collectives of pytrees, eager and compiled (:mod:`.collectives`)
``DistributedOptimizer``                         any optax transformation, on averaged gradients (:mod:`.optimizer`)
``broadcast_parameters``, ``broadcast_object``   return one rank's pytree or object on all ranks
``Compression``                                  gradients sent in half precision
``ProcessSet``, ``add_process_set`` ...          collectives among some ranks (:mod:`rueda.hvd.common.process_sets`)
===============================================  =======================================================================
"""

from __future__ import annotations

from rueda.hvd import basics
from rueda.hvd.basics import *  # noqa: F403
from rueda.hvd.bridge import jax as _bridge  # noqa: F401  (imported first: where JAX is missing, it names the pip command)
from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.hvd.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from rueda.hvd.jax.collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_parameters,
    join,
    reducescatter,
    shutdown,
)
from rueda.hvd.jax.optimizer import DistributedOptimizer
from rueda.hvd.torch.compression import Compression
from rueda.hvd.torch.functions import allgather_object, broadcast_object
from rueda.hvd.torch.reduce_ops import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "Max",
    "Min", "ProcessSet", "Product", "Sum", "add_process_set", "allgather", "allgather_object", "allreduce", "alltoall",
    "barrier", "broadcast", "broadcast_object", "broadcast_parameters", "global_process_set", "join", "reducescatter",
    "remove_process_set", "shutdown",
]  # fmt: skip
__all__ += [name for name in basics.__all__ if name != "shutdown"]
