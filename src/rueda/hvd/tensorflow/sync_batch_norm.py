"""Batch normalisation over the batches of all workers, or of a process set, for Keras on TensorFlow.

With n_r values of a channel on rank r, whose sum is s_r, the layer normalises by::

    mean = sum_r s_r / sum_r n_r              variance = sum_r sum_x (x - mean)^2 / sum_r n_r

Each sum over ranks is an all-reduce, through which gradients flow. Batches may have different sizes, where Horovod,
which averages the ranks' means, would weight them equally. The differences from the common mean keep the variance exact
where the mean of squares less the square of the mean would lose its digits.
"""

from __future__ import annotations

from typing import Any

from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.process_sets import ProcessSet, global_process_set, may_exchange
from rueda.hvd.tensorflow.mpi_ops import Sum
from rueda.hvd.tensorflow.reduce_ops import allreduce

_IS_KERAS_2 = tf.keras.layers.Layer.__module__.startswith("tf_keras")


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch norm over all workers' batches in training; plain batch norm in evaluation and on one worker.

    Args:
        fused: accepted for compatibility with Horovod; True and None are errors: a fused kernel cannot communicate.
        process_set: the workers that share statistics.
        kwargs: the arguments of ``tf.keras.layers.BatchNormalization``.
    """

    def __init__(self, fused: bool | None = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused is not False:  # None lets Keras choose
            raise ValueError(f"SyncBatchNormalization: expected fused=False, got {fused}; leave it out")
        if _IS_KERAS_2:
            kwargs["fused"] = False
        super().__init__(**kwargs)
        self.process_set = process_set

    def _moments(self, inputs: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        if not may_exchange(self.process_set):
            mean, variance = super()._moments(inputs, *arguments, **options)
            return mean, variance
        axis = self.axis[0] if isinstance(self.axis, (list, tuple)) else self.axis
        axes = [one for one in range(len(inputs.shape)) if one != axis % len(inputs.shape)]
        keep = bool(arguments[1] if _IS_KERAS_2 and len(arguments) > 1 else options.get("keep_dims"))
        values = tf.cast(inputs, tf.float32) if inputs.dtype in (tf.float16, tf.bfloat16) else inputs
        total = tf.reduce_sum(values, axes)
        count = tf.cast(tf.size(values) // tf.maximum(tf.size(total), 1), total.dtype)
        sums = self._sum(tf.concat([total, [count]], 0), "sums")
        mean = sums[:-1] / sums[-1]
        shape = [-1 if one == axis % len(inputs.shape) else 1 for one in range(len(inputs.shape))]
        squares = tf.reduce_sum(tf.square(values - tf.reshape(mean, shape)), axes)
        variance = self._sum(squares, "squares") / sums[-1]
        if keep:
            mean, variance = tf.reshape(mean, shape), tf.reshape(variance, shape)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def _sum(self, tensor: Any, name: str) -> Any:
        return allreduce(tensor, op=Sum, name=f"sync_batch_norm.{name}", process_set=self.process_set)
