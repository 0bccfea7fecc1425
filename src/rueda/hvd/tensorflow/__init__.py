"""``horovod.tensorflow``: what a TensorFlow 2 script for Horovod imports as ``hvd``.

===============================================  =======================================================================
``init``, ``rank``, ``size``, ``shutdown`` ...   connect the workers; their ranks and number (:mod:`rueda.hvd.basics`)
``allreduce``, ``reducescatter`` ...             reductions of tensors and IndexedSlices (:mod:`.reduce_ops`)
``allgather``, ``broadcast``, ``alltoall`` ...   the other collectives; ``rank_op`` ... (:mod:`.mpi_ops`)
``DistributedGradientTape`` ...                  a tape whose gradients are averaged (:mod:`.gradient_tape`)
``DistributedOptimizer``                         an optimizer that averages its gradients (:mod:`.optimizer`)
``broadcast_variables`` ...                      copy one rank's state to all ranks (:mod:`.functions`)
``SyncBatchNormalization``                       batch statistics over all workers (:mod:`.sync_batch_norm`)
``Compression``                                  gradients sent in half precision (:mod:`.compression`)
``elastic``                                      states that are committed in memory (:mod:`.elastic`)
``ProcessSet``, ``add_process_set`` ...          collectives among some ranks (:mod:`rueda.hvd.common.process_sets`)
===============================================  =======================================================================

Collectives run on the engine of ``horovod.torch``: TensorFlow's tensors share their memory with torch's
(:mod:`rueda.hvd.bridge.tensorflow`), in eager mode and within a ``tf.function``. XLA cannot compile them:
``jit_compile=True`` and collectives exclude each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rueda.hvd import basics
from rueda.hvd.alias import install_finder
from rueda.hvd.basics import *  # noqa: F403
from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.hvd.common.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    is_process_set_included,
    remove_process_set,
)
from rueda.hvd.common.util import check_extension, gpu_available
from rueda.hvd.tensorflow import elastic as elastic
from rueda.hvd.tensorflow import mpi_ops
from rueda.hvd.tensorflow.compression import Compression
from rueda.hvd.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from rueda.hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from rueda.hvd.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from rueda.hvd.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from rueda.hvd.tensorflow.mpi_ops import *  # noqa: F403
from rueda.hvd.tensorflow.optimizer import DistributedOptimizer
from rueda.hvd.tensorflow.reduce_ops import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter

if TYPE_CHECKING:
    from rueda.hvd.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "BroadcastGlobalVariablesHook", "Compression", "DistributedGradientTape", "DistributedOptimizer",
    "HorovodInternalError", "HostsUpdatedInterrupt", "LocalGradientAggregationHelper",
    "LocalGradientAggregationHelperEager", "PartialDistributedGradientTape", "ProcessSet", "SyncBatchNormalization",
    "add_process_set", "allgather_object", "allreduce", "broadcast_global_variables", "broadcast_object",
    "broadcast_object_fn", "broadcast_variables", "check_extension", "elastic", "get_process_set_ids_and_ranks",
    "global_process_set", "gpu_available", "grouped_allreduce", "grouped_reducescatter", "is_process_set_included",
    "reducescatter", "remove_process_set",
]  # fmt: skip
__all__ += basics.__all__
__all__ += mpi_ops.__all__

install_finder()  # so that importing a name that is missing raises an error that explains why


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # loads Keras, which not every script uses
        from rueda.hvd.tensorflow import sync_batch_norm

        return sync_batch_norm.SyncBatchNormalization
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.tensorflow", name)
