"""``horovod.torch``: what a PyTorch script for Horovod imports as ``hvd``.

===============================================  =======================================================================
``init``, ``rank``, ``size``, ``shutdown`` ...   connect the workers; their ranks and number (:mod:`rueda.hvd.basics`)
``allreduce``, ``allgather``, ``broadcast`` ...  collectives whose tensors are matched by name (:mod:`.mpi_ops`)
``DistributedOptimizer``                         any optimizer, applied to averaged gradients (:mod:`.optimizer`)
``broadcast_parameters`` ...                     copy one rank's state to all ranks (:mod:`.functions`)
``SyncBatchNorm``                                batch statistics over all workers (:mod:`.sync_batch_norm`)
``exact``                                        collectives without Horovod's factors in gradients (:mod:`.exact`)
``Compression``                                  gradients sent in half precision (:mod:`.compression`)
``elastic``                                      training that survives the loss of workers (:mod:`.elastic`)
``ProcessSet``, ``add_process_set`` ...          collectives among some ranks (:mod:`rueda.hvd.common.process_sets`)
===============================================  =======================================================================
"""

from __future__ import annotations

from typing import Any

from rueda.hvd import basics
from rueda.hvd.basics import *  # noqa: F403
from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.hvd.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from rueda.hvd.torch import elastic as elastic
from rueda.hvd.torch import exact as exact
from rueda.hvd.torch import mpi_ops
from rueda.hvd.torch.compression import Compression
from rueda.hvd.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from rueda.hvd.torch.mpi_ops import *  # noqa: F403
from rueda.hvd.torch.optimizer import DistributedOptimizer
from rueda.hvd.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression", "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "ProcessSet",
    "SyncBatchNorm", "add_process_set", "allgather_object", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "elastic", "global_process_set", "remove_process_set",
]  # fmt: skip
__all__ += basics.__all__
__all__ += mpi_ops.__all__
__all__.remove("handle_average_backwards_compatibility")  # only mpi_ops has it


def __getattr__(name: str) -> Any:
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.torch", name)
