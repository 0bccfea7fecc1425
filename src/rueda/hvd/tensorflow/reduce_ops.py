"""``allreduce`` and ``reducescatter`` of TensorFlow tensors and, for ``allreduce``, of ``tf.IndexedSlices``.

IndexedSlices, the gradients of embeddings, are sums of rows: their all-reduce gathers the rows and indices of all ranks
instead of adding mostly zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.tensorflow.compression import Compression, Compressor
from rueda.hvd.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Sum,
    grouped_allgather,
    handle_average_backwards_compatibility,
    number_of_workers,
    reduce_dense,
)
from rueda.hvd.torch.collective_entries import Reduction


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce the ranks' tensors into a new one, which is the same on all ranks.

    Args:
        tensor: a tensor or variable of the same shape and type on all ranks, or ``tf.IndexedSlices``.
        average: the older form of ``op=Average`` (True) or ``op=Sum`` (False).
        device_dense: accepted for compatibility with Horovod: tensors are reduced on the device on which they are.
        device_sparse: likewise, for IndexedSlices.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Adasum, Min, Max or Product; IndexedSlices take Average and Sum.
        prescale_factor: every rank's tensor is multiplied by it before the reduction.
        postscale_factor: the result is multiplied by it.
        name: the tensor's name, by which ranks match it.
        process_set: the ranks that take part.
        ignore_name_scope: accepted for compatibility with Horovod: a name is used as it is given.
    """
    return grouped_allreduce(
        [tensor], average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor, process_set,
        ignore_name_scope, name,
    )[0]  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce a list of tensors as one collective; the arguments are those of :func:`allreduce`."""
    operation = handle_average_backwards_compatibility(op, average)
    reduction = Reduction(process_set, operation, prescale_factor, postscale_factor)
    is_sparse = [isinstance(tensor, tf.IndexedSlices) for tensor in tensors]
    dense = [tensor for tensor, sparse in zip(tensors, is_sparse, strict=True) if not sparse]
    slices = [tensor for tensor, sparse in zip(tensors, is_sparse, strict=True) if sparse]
    dense_results = iter(_compressed("Allreduce", dense, compression, name, reduction))
    sparse_results = iter(_allreduce_slices(slices, name, reduction))
    return [next(sparse_results if sparse else dense_results) for sparse in is_sparse]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce the ranks' tensors and return this rank's part of the rows.

    Args:
        tensor: of the same shape and type on all ranks; rows that do not divide evenly go to the first ranks.
        device_dense: accepted for compatibility with Horovod: tensors are reduced on the device on which they are.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        op: Average (the default), Sum, Min, Max or Product.
        name: the tensor's name, by which ranks match it.
        process_set: the ranks that take part.
        ignore_name_scope: accepted for compatibility with Horovod: a name is used as it is given.
        prescale_factor: every rank's tensor is multiplied by it before the reduction.
        postscale_factor: the result is multiplied by it.
    """
    if isinstance(tensor, tf.IndexedSlices):
        raise NotImplementedError("reducescatter: expected a dense tensor, got IndexedSlices; convert them to a tensor")
    reduction = Reduction(process_set, op, prescale_factor, postscale_factor)
    return _compressed("Reducescatter", [tensor], compression, name, reduction)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce a list of tensors as one collective and return this rank's part of the rows of each."""
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError("grouped_reducescatter: expected dense tensors, got IndexedSlices; convert them")
    return _compressed(
        "Reducescatter", tensors, compression, None, Reduction(process_set, op, prescale_factor, postscale_factor)
    )


def _compressed(
    kind: str, tensors: Sequence[Any], compression: type[Compressor], name: str | None, reduction: Reduction
) -> list[Any]:
    small = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    results = reduce_dense(kind, [tensor for tensor, _ in small], name, reduction)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, small, strict=True)]


def _allreduce_slices(slices: Sequence[Any], name: str | None, reduction: Reduction) -> list[Any]:
    process_set, operation, prescale, postscale = reduction
    if not slices:
        return []
    if operation == Adasum:
        raise NotImplementedError("Adasum of IndexedSlices: expected dense tensors; give sparse_as_dense=True")
    if operation not in (Average, Sum):
        raise NotImplementedError("IndexedSlices: expected op Average or Sum; for others, convert them to a tensor")
    factor = prescale * postscale / (number_of_workers(process_set) if operation == Average else 1)
    is_one = isinstance(factor, float) and factor == 1
    parts = [part for one in slices for part in (one.values, one.indices)]
    gathered = grouped_allgather(parts, name if name is None else f"{name}.slices", process_set=process_set)
    return [
        tf.IndexedSlices(values if is_one else values * tf.cast(factor, values.dtype), indices, one.dense_shape)
        for one, values, indices in zip(slices, gathered[::2], gathered[1::2], strict=True)
    ]
