"""Broadcast of variables, and collectives of values that are not gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.keras import family as families
from rueda.hvd.torch import mpi_ops as ops
from rueda.hvd.torch.compression import Compression, Compressor
from rueda.hvd.torch.functions import broadcast_parameters


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, family: str | None = None
) -> None:
    """Overwrite variables with those of one rank.

    Args:
        variables: variables of Keras 3 or tf_keras, in the same order on all ranks.
        root_rank: the rank whose values are broadcast.
        process_set: the ranks that take part.
        family: the Keras that they belong to; by default that of the script.
    """
    variables = list(variables)
    family = family or families.current_family()
    if not variables or process_set.size() == 1:
        return

    def received(tensors: list[Tensor]) -> list[Tensor]:
        copies = [tensor.clone() for tensor in tensors]
        names = [f"broadcast_variables.{number}" for number in range(len(copies))]
        broadcast_parameters(list(zip(names, copies, strict=True)), root_rank, process_set)
        return copies

    values = [_native(variable) for variable in variables]
    for variable, value in zip(variables, families.host_call(family, received, values, values), strict=True):
        variable.assign(value)


def _native(variable: Any) -> Any:
    value = (
        variable.value
    )  # a method of tf.Variable, a property of keras.Variable, which on TensorFlow holds the former
    value = value() if callable(value) else value
    return value.read_value() if hasattr(value, "read_value") else value


def state_of(model: Any) -> list[Any]:
    """Return the weights of a model and the variables of its optimizer: what must be equal on all ranks.

    Seeds of random layers are left out, since every rank drops its own units.
    """
    return [*model.weights, *optimizer_variables(getattr(model, "optimizer", None))]


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer, which is a method in tf_keras's older ones."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def broadcast_global_variables(root_rank: int) -> None:
    """Refuse, as Horovod does with TensorFlow 2, where variables belong to models and there are no global ones.

    Raises:
        RuntimeError: always; the message says what to use.
    """
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution: use "
        "hvd.callbacks.BroadcastGlobalVariablesCallback(root), or hvd.broadcast_variables(model.weights, root)"
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the ranks' values into a tensor of the backend.

    Args:
        value: what the backend can convert to a tensor, of the same shape on all ranks.
        name: the name of the collective; None: it is matched by the order of submission.
        average: the older form of ``op=Average`` (True) or ``op=Sum`` (False).
        prescale_factor: every rank's value is multiplied by it before the reduction.
        postscale_factor: the result is multiplied by it.
        op: Average (the default), Sum, Adasum, Min, Max or Product.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        process_set: the ranks that take part.
    """

    def reduced(tensors: list[Tensor]) -> list[Tensor]:
        (tensor,) = tensors
        return [ops.allreduce(tensor, average, name, compression, op, prescale_factor, postscale_factor, process_set)]

    return _call(reduced, value)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the ranks' values along the first dimension, which may differ between ranks."""
    return _call(lambda tensors: [ops.allgather(tensors[0], name, process_set)], value, rows=True)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return one rank's value on all ranks."""
    return _call(lambda tensors: [ops.broadcast(tensors[0], root_rank, name, process_set)], value)


def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = ops.Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the ranks' values and return this rank's part of the rows.

    Args:
        value: what the backend can convert to a tensor, of the same shape on all ranks.
        name: the name of the collective; None: it is matched by the order of submission.
        op: Average, Sum, Min, Max or Product.
        prescale_factor: every rank's value is multiplied by it before the reduction.
        postscale_factor: the result is multiplied by it.
        process_set: the ranks that take part.
    """

    def reduced(tensors: list[Tensor]) -> list[Tensor]:
        (tensor,) = tensors
        none = Compression.none
        return [ops.reducescatter(tensor, name, none, op, process_set, prescale_factor, postscale_factor)]

    return _call(reduced, value, rows=True)


def _call(function: families.Function, value: Any, *, rows: bool = False) -> Any:
    """Call a collective with a value of the current Keras; with ``rows``, the result may have more or fewer rows."""
    family = families.current_family()
    if families.backend_of(family) == "tensorflow":
        import tensorflow as tf

        tensor = tf.convert_to_tensor(value)
        like = tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) if rows else tensor
    else:
        tensor = like = families.load(family).ops.convert_to_tensor(value)
    return families.host_call(family, function, [tensor], [like])[0]
