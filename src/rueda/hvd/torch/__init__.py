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

from rueda.hvd import basics
from rueda.hvd.alias import watch
from rueda.hvd.basics import *  # noqa: F403
from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.hvd.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
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
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_process_set",
    "remove_process_set",
]
__all__ += basics.__all__
__all__ += mpi_ops.__all__
__all__.remove("handle_average_backwards_compatibility")  # only mpi_ops has it

watch()  # so that `from horovod.torch import elastic` says what is the matter


def __getattr__(name: str) -> Any:
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.torch", name)
