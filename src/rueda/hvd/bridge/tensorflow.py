"""Calls a function of torch tensors with TensorFlow tensors.

Both frameworks speak DLPack: in eager mode the torch tensors and the TensorFlow tensors are two views of the same
memory, in both directions, and nothing is copied. Within a ``tf.function`` the call is one operation of the graph,
``tf.py_function``, whose body is the eager call. TensorFlow runs operations with side effects in the order in which
they were traced, so that all ranks run their calls in one order, and no rank waits in a call for another rank that
waits in a later one. XLA (``jit_compile=True``) cannot compile such an operation and says so.

On a GPU, TensorFlow waits for the tensor before it exports it, and torch's stream is waited for before its results are
handed over. This path has not been tried on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from rueda.errors import MissingExtra

try:
    import tensorflow as tf
except ModuleNotFoundError:
    raise MissingExtra("tensorflow", "tensorflow") from None

__all__ = ["host_call", "tf", "to_tensorflow", "to_torch"]

_ALIGNMENT = 64  # bytes; TensorFlow ends the process when a CPU operation meets memory that is aligned to fewer
_DTYPES = {  # with others to_dlpack ends the process
    tf.bool, tf.uint8, tf.int8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64, tf.float16, tf.bfloat16,
    tf.float32, tf.float64, tf.complex64, tf.complex128,
}  # fmt: skip


def host_call(
    function: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]], tensors: Sequence[Any], like: Sequence[Any]
) -> list[Any]:
    """Call a function of torch tensors and return its results as TensorFlow tensors.

    Args:
        function: takes a list of torch tensors, which it must not change, and returns as many as ``like`` has.
        tensors: TensorFlow tensors or variables.
        like: for each result a tensor or ``tf.TensorSpec`` of its dtype and shape, in which None is an unknown length.
    """
    inputs = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if tf.executing_eagerly():
        return _call(function, inputs)
    results = tf.py_function(lambda *given: _call(function, given), inputs, [spec.dtype for spec in like])
    if not like:  # the operation itself
        return []
    for result, spec in zip(results, like, strict=True):
        result.set_shape(spec.shape)
    return list(results)


def to_torch(tensor: Any) -> torch.Tensor:
    """Return a torch tensor that shares the memory of an eager TensorFlow tensor."""
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"expected a tensor of numbers or bools, got dtype {tensor.dtype.name}; convert it")
    return from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))


def to_tensorflow(tensor: torch.Tensor) -> Any:
    """Return a TensorFlow tensor that shares the memory of a torch tensor, or of a copy if its layout needs one."""
    tensor = tensor.detach().contiguous()
    if tensor.is_cpu and tensor.data_ptr() % _ALIGNMENT:
        tensor = tensor.clone()
    return tf.experimental.dlpack.from_dlpack(tensor.__dlpack__())


def _call(function: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]], tensors: Sequence[Any]) -> list[Any]:
    inputs = [to_torch(tensor) for tensor in tensors]
    memory = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    results = function(inputs)
    if any(result.is_cuda for result in results):
        torch.cuda.current_stream().synchronize()
    # TensorFlow may overwrite a tensor that it no longer needs, so that no two may share their memory.
    return [
        to_tensorflow(result.clone() if result.untyped_storage().data_ptr() in memory else result) for result in results
    ]
