"""The collectives of ``horovod.tensorflow`` on tensors, and the operations that return ranks and sizes.

They take tensors, variables and what ``tf.convert_to_tensor`` accepts, in eager mode and within a ``tf.function``, and
are matched by name as those of ``horovod.torch`` (:mod:`rueda.hvd.torch.mpi_ops`). Gradients flow through all of them,
with Horovod's factors (:mod:`rueda.hvd.torch.passes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rueda.hvd.basics import *  # noqa: F403  scripts import them from here, too
from rueda.hvd.basics import local_rank, local_size, rank
from rueda.hvd.bridge.tensorflow import host_call, tf
from rueda.hvd.common.process_sets import (
    ProcessSet,
    get_process_set_ids_and_ranks,
    global_process_set,
    is_process_set_included,
)
from rueda.hvd.common.util import num_rank_is_power_2
from rueda.hvd.core.collectives import divide_rows
from rueda.hvd.tensorflow.differentiable import differentiable, name_of
from rueda.hvd.torch import passes
from rueda.hvd.torch.collective_entries import Reduction
from rueda.hvd.torch.mpi_ops import barrier, broadcast_async, join, synchronize
from rueda.hvd.torch.reduce_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    handle_average_backwards_compatibility,
)
from rueda.world.elastic import is_elastic

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather", "alltoall", "barrier", "broadcast", "broadcast_",
    "check_num_rank_power_of_2", "grouped_allgather", "handle_average_backwards_compatibility", "join", "local_rank_op",
    "local_size_op", "process_set_included_op", "rank_op", "size_op",
]  # fmt: skip


def reduce_dense(kind: str, tensors: Sequence[Any], name: str | None, reduction: Reduction) -> list[Any]:
    """Run an all-reduce or a reduce-scatter of a list of tensors as one collective.

    Args:
        kind: ``"Allreduce"`` or ``"Reducescatter"``.
        tensors: the tensors.
        name: the name by which ranks match the collective.
        reduction: the process set, operation and factors.
    """
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not tensors:
        return []
    name = name_of(kind, name, tensors[0])
    if kind == "Allreduce":
        return differentiable(passes.Allreduce(name, reduction), tensors, tensors)
    like = [tf.TensorSpec(_part(tensor.shape, reduction.process_set), tensor.dtype) for tensor in tensors]
    return differentiable(passes.Reducescatter(name, reduction), tensors, like)


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """Return all ranks' tensors concatenated along the first dimension, in which they may differ.

    Args:
        tensor: of the same type and, but for the first dimension, shape on all ranks.
        name: the tensor's name, by which ranks match it.
        ignore_name_scope: accepted for compatibility with Horovod: a name is used as it is given.
        process_set: the ranks that take part.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gather a list of tensors as one collective: the n-th result concatenates all ranks' n-th tensors."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not tensors:
        return []
    like = [tf.TensorSpec(_any_rows(tensor.shape), tensor.dtype) for tensor in tensors]
    shapes = [tf.TensorSpec([tensor.shape.rank], tf.int64) for tensor in tensors]
    return differentiable(passes.Allgather(name_of("Allgather", name, tensors[0]), process_set), tensors, like, shapes)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of ``root_rank``, which is a rank among all workers, not within the process set.

    Args:
        tensor: of the same shape and type on all ranks.
        root_rank: the rank whose tensor is sent.
        name: the tensor's name, by which ranks match it.
        ignore_name_scope: accepted for compatibility with Horovod: a name is used as it is given.
        process_set: the ranks that take part.
    """
    tensor = tf.convert_to_tensor(tensor)
    collective = passes.Broadcast(root_rank, name_of("Broadcast", name, tensor), process_set)
    return differentiable(collective, [tensor], [tensor])[0]


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Assign ``root_rank``'s values to variables, in one call, and return the values.

    Args:
        variables: TensorFlow or Keras variables, in the same order on all ranks.
        root_rank: the rank whose values are sent.
        name: the name by which ranks match the broadcasts.
        process_set: the ranks that take part.
    """
    return [tf.convert_to_tensor(made) for made in assign_broadcast(variables, root_rank, name, process_set)]


def assign_broadcast(variables: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet) -> list[Any]:
    """Assign ``root_rank``'s values to variables, in one call; return the assignments, which a graph has to run."""

    def send(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        handles = [
            broadcast_async(tensor, root_rank, f"{name or 'broadcast_variables'}.{index}", process_set)
            for index, tensor in enumerate(tensors)
        ]
        return [synchronize(handle) for handle in handles]

    values = [tf.convert_to_tensor(variable) for variable in variables]
    received = host_call(send, values, values)
    return [variable.assign(value) for variable, value in zip(variables, received, strict=True)]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its part of this tensor, and return the received parts concatenated in rank order.

    Args:
        tensor: the parts, along the first dimension, in rank order.
        splits: the number of rows for each rank; None: the same number for all.
        name: the tensor's name, by which ranks match it.
        ignore_name_scope: accepted for compatibility with Horovod: a name is used as it is given.
        process_set: the ranks that take part.

    Returns:
        The received tensor; with ``splits``, also the number of rows received from each rank, as int32.
    """
    tensor = tf.convert_to_tensor(tensor)
    given = [] if splits is None else [tf.convert_to_tensor(splits, None if tf.is_tensor(splits) else tf.int32)]
    like = [tf.TensorSpec(_any_rows(tensor.shape), tensor.dtype), tf.TensorSpec([None], tf.int32)]
    collective = passes.Alltoall(name_of("Alltoall", name, tensor), process_set)
    output, received = differentiable(collective, [tensor, *given], like, [like[1]])
    return output if splits is None else (output, received)


# Ranks and sizes as operations, which a graph evaluates whenever it runs.


def rank_op(name: str | None = None) -> Any:
    """Return the rank of this worker as a tensor."""
    return _number(rank)


def local_rank_op(name: str | None = None) -> Any:
    """Return the rank of this worker on its own machine as a tensor."""
    return _number(local_rank)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of workers on this machine as a tensor."""
    return _number(local_size)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of workers in a process set as a tensor."""
    return _number(lambda: len(get_process_set_ids_and_ranks()[process_set_id]))


def number_of_workers(process_set: ProcessSet) -> Any:
    """Return the number of workers in a process set; as a scalar tensor in a traced function of an elastic job.

    Such a function is traced once, and runs with different numbers of workers.
    """
    if tf.executing_eagerly() or not is_elastic():
        return process_set.size()
    return tf.cast(size_op(process_set.process_set_id or 0), tf.float64)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return whether this worker is in a process set, as a tensor that is 1 or 0."""
    return _number(lambda: int(is_process_set_included(process_set_id)))


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return whether a number of workers is a power of two (Rueda's Adasum accepts any number)."""
    return num_rank_is_power_2(num_rank)


def _number(read: Callable[[], int]) -> Any:
    return host_call(lambda _: [torch.tensor(read(), dtype=torch.int32)], [], [tf.TensorSpec([], tf.int32)])[0]


def _any_rows(shape: Any) -> Any:
    """Return a shape whose first dimension is unknown; a scalar counts as one row."""
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])


def _part(shape: Any, process_set: ProcessSet) -> Any:
    """Return the shape of this rank's part of a tensor that is scattered by rows."""
    if not shape.rank or shape[0] is None or is_elastic():
        return _any_rows(shape)
    return tf.TensorShape([divide_rows(shape[0], process_set.size())[process_set.rank()], *shape[1:]])
