"""Gradients of Keras, on any backend, reduced over the workers in one call to the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from rueda.hvd.core.entries import MIN
from rueda.hvd.keras import family as families
from rueda.hvd.keras.optimizer import Options
from rueda.hvd.torch.collective_entries import Reduction, allreduce_entry, run


def reduce(options: Options, gradients: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
    """Return the gradients reduced over the workers; None stays None, and local variables keep their own gradient.

    Args:
        options: how to reduce.
        gradients: native tensors of the backend, ``tf.IndexedSlices`` or None.
        keys: the key of the variable of each.
    """
    exchange, made = options.exchange, list(gradients)
    if exchange.alone:
        return made
    shared = []
    for number, gradient in enumerate(made):
        if gradient is None:
            continue
        if keys[number] not in options.local:
            shared.append(number)
        elif options.scale_local:
            made[number] = _divided(gradient, exchange.process_set.size())
    for number, value in zip(shared, _exchange(options, [made[n] for n in shared]), strict=True):
        made[number] = value
    return made


def all_finite(options: Options, flag: Any) -> Any:
    """Return the least of the workers' flags: 1.0 where each has found its gradients finite, else 0.0."""
    if options.exchange.alone:
        return flag
    reduction = Reduction(options.exchange.process_set, MIN)

    def least(tensors: list[Tensor]) -> list[Tensor]:
        return run(allreduce_entry(tensors, f"{options.exchange.name}.finite", reduction))

    return families.host_call(options.family, least, [flag], [flag])[0]


def _exchange(options: Options, gradients: list[Any]) -> list[Any]:
    sparse = [number for number, gradient in enumerate(gradients) if _is_sparse(gradient)]
    if sparse and options.sparse_as_dense:
        gradients, sparse = [_dense(gradient) for gradient in gradients], []
    if not sparse:
        return families.host_call(options.family, options.exchange, gradients, gradients) if gradients else []
    import tensorflow as tf

    dense = [number for number in range(len(gradients)) if number not in sparse]
    tensors = [gradients[number] for number in dense]
    like = list(tensors)
    for number in sparse:
        values, indices = gradients[number].values, gradients[number].indices
        tensors += [values, indices]
        like += [tf.TensorSpec([None, *values.shape[1:]], values.dtype), tf.TensorSpec([None], indices.dtype)]
    function = partial(options.exchange, num_sparse=len(sparse))
    results = families.host_call(options.family, function, tensors, like)
    made = dict(zip(dense, results, strict=False))
    pairs = zip(results[len(dense) :: 2], results[len(dense) + 1 :: 2], strict=True)
    for number, (values, indices) in zip(sparse, pairs, strict=True):
        made[number] = tf.IndexedSlices(values, indices, gradients[number].dense_shape)
    return [made[number] for number in range(len(gradients))]


def _is_sparse(gradient: Any) -> bool:
    return hasattr(gradient, "dense_shape")  # tf.IndexedSlices, without importing TensorFlow


def _dense(gradient: Any) -> Any:
    if not _is_sparse(gradient):
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def _divided(gradient: Any, number: int) -> Any:
    if not _is_sparse(gradient):
        return gradient / number
    import tensorflow as tf

    return tf.IndexedSlices(gradient.values / number, gradient.indices, gradient.dense_shape)
