"""``horovod.keras`` and ``horovod.tensorflow.keras``: what a Keras script for Horovod imports as ``hvd``.

===============================================  =======================================================================
``init``, ``rank``, ``size``, ``shutdown`` ...   connect the workers; their ranks and number (:mod:`rueda.hvd.basics`)
``DistributedOptimizer``                         any optimizer, applied to averaged gradients (:mod:`.optimizer`)
``callbacks``                                    broadcast, averaged metrics, warm-up, schedules (:mod:`.callbacks`)
``load_model``                                   a saved model with a distributed optimizer (:mod:`.load`)
``allreduce``, ``allgather``, ``broadcast`` ...  collectives of values (:mod:`.variables`)
``elastic``                                      state that can be committed and restored (:mod:`.elastic`)
===============================================  =======================================================================

It works with Keras 3 on its TensorFlow, torch and JAX backends and with tf_keras (:mod:`.family`). Importing this
module does not import Keras.
"""

from __future__ import annotations

from typing import Any

from rueda.hvd import basics
from rueda.hvd.alias import install_finder
from rueda.hvd.basics import *  # noqa: F403
from rueda.hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.hvd.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from rueda.hvd.keras import callbacks, elastic
from rueda.hvd.keras.load import load_model
from rueda.hvd.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from rueda.hvd.keras.variables import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)
from rueda.hvd.torch.compression import Compression
from rueda.hvd.torch.functions import allgather_object, broadcast_object
from rueda.hvd.torch.reduce_ops import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "Max",
    "Min", "PartialDistributedOptimizer", "ProcessSet", "Product", "Sum", "add_process_set", "allgather",
    "allgather_object", "allreduce", "broadcast", "broadcast_global_variables", "broadcast_object",
    "broadcast_variables", "callbacks", "elastic", "global_process_set", "load_model", "reducescatter",
    "remove_process_set",
]  # fmt: skip
__all__ += basics.__all__

install_finder()  # so that `horovod.tensorflow.keras` is this module


def __getattr__(name: str) -> Any:
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod.keras", name)
