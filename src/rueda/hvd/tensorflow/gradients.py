"""The exchange of a step's gradients: what the gradient tapes and optimizers for TensorFlow have in common."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.process_sets import ProcessSet, global_process_set, may_exchange
from rueda.hvd.tensorflow.compression import Compression, Compressor
from rueda.hvd.tensorflow.mpi_ops import Average, number_of_workers
from rueda.hvd.tensorflow.reduce_ops import grouped_allreduce


@dataclass(frozen=True, kw_only=True)
class GradientReduction:
    """How the gradients of a step are reduced: in one call, whatever their number.

    Args:
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        sparse_as_dense: convert IndexedSlices to dense gradients first, which is faster if most rows are used.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: with Average, gradients are divided by it before the sum and the sum is multiplied
            by it over the number of ranks, which keeps half-precision sums in range.
        num_groups: the older form of ``groups``.
        groups: a number of groups, or a list of lists of variables, that Horovod would send together; checked, but not
            needed, since all gradients are sent together.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local variables, which are not exchanged, by the number of
            ranks, as if the other ranks' were zero.
    """

    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    num_groups: int = 0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor: expected 1 unless op is Average; leave it out")
        if self.num_groups:
            warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=3)
        groups = self.groups if self.groups is not None else self.num_groups
        if not isinstance(groups, list) and not (isinstance(groups, int) and groups >= 0):
            raise ValueError(f"groups: expected a number or a list of lists of variables, got {groups!r}; correct it")

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], local: Collection[Any] = ()) -> list[Any]:
        """Return the reduced gradients; those that are None remain None.

        Args:
            gradients: tensors, IndexedSlices or None, one for each variable.
            variables: the variables.
            local: the ids of the variables whose gradients are not exchanged.
        """
        results = list(gradients)
        if self.sparse_as_dense:
            results = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in results]
        sent = []
        for index, (gradient, variable) in enumerate(zip(results, variables, strict=True)):
            if gradient is None:
                continue
            if id(variable) not in local:
                sent.append(index)
            elif self.scale_local_gradients:
                results[index] = divided(gradient, number_of_workers(self.process_set))
        for index, reduced in zip(sent, self.allreduce([results[index] for index in sent]), strict=True):
            results[index] = reduced
        return results

    def allreduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the reduction of a list of gradients, none of which is None.

        A rank outside the process set keeps its own gradients, as in Horovod.
        """
        if not may_exchange(self.process_set):
            return list(gradients)
        factor = self.gradient_predivide_factor
        return grouped_allreduce(
            gradients, compression=self.compression, op=self.op, prescale_factor=1 / factor, postscale_factor=factor,
            process_set=self.process_set,
        )  # fmt: skip


def divided(gradient: Any, number: Any) -> Any:
    """Return a gradient, a tensor or IndexedSlices, divided by a number or a scalar tensor."""
    divisor = tf.cast(number, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / divisor, gradient.indices, gradient.dense_shape)
    return gradient / divisor
