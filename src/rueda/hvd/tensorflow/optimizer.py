"""``DistributedOptimizer`` for Keras optimizers and for TensorFlow 1's (``tf.compat.v1.train``)."""

from __future__ import annotations

from typing import Any

from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.tensorflow.compression import Compression, Compressor
from rueda.hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from rueda.hvd.tensorflow.gradients import GradientReduction
from rueda.hvd.tensorflow.mpi_ops import Average


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that applies gradients that are reduced over the ranks.

    Args:
        optimizer: an optimizer of Keras 3, ``tf_keras`` or ``tf.compat.v1.train``.
        name: the name of the new optimizer.
        use_locking: of a TensorFlow 1 optimizer: lock variables while they are updated.
        device_dense: accepted for compatibility with Horovod: gradients are reduced on the device on which they are.
        device_sparse: likewise, for IndexedSlices.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        sparse_as_dense: convert IndexedSlices to dense gradients first.
        backward_passes_per_step: sum gradients over this many passes before they are exchanged and applied.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: with Average, the part of the division that is done before the sum.
        average_aggregated_gradients: divide sums over several passes by their number.
        num_groups: the older form of ``groups``.
        groups: accepted for compatibility with Horovod: all gradients are sent together.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local variables by the number of ranks.
    """
    common: dict[str, Any] = {
        "compression": compression, "sparse_as_dense": sparse_as_dense, "op": op,
        "gradient_predivide_factor": gradient_predivide_factor, "num_groups": num_groups, "groups": groups,
        "process_set": process_set, "scale_local_gradients": scale_local_gradients,
    }  # fmt: skip
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        reduction = GradientReduction(**common)
        return _DistributedV1Optimizer(
            optimizer, name, use_locking, reduction, backward_passes_per_step, average_aggregated_gradients
        )
    from rueda.hvd import keras

    return keras.DistributedOptimizer(
        optimizer, name=name, backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients, **common,
    )  # fmt: skip


class _DistributedV1Optimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of TensorFlow 1 whose gradients are reduced over the ranks when they are computed."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reduction: GradientReduction,
        passes: int,
        average_passes: bool,
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._aggregation = LocalGradientAggregationHelper(
            passes, reduction.reduce, average_aggregated_gradients=average_passes, process_set=reduction.process_set,
            scale_local_gradients=reduction.scale_local_gradients,
        )  # fmt: skip

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable out of the exchange."""
        self._aggregation.register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a reduced gradient and its variable; the arguments are those of the optimizer's own."""
        gradients, variables = zip(*self._optimizer.compute_gradients(*args, **kwargs), strict=True)
        return list(zip(self._aggregation.compute_gradients(gradients, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the gradients, if they have been exchanged; count the step in any case."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._aggregation.backward_passes_per_step == 1:
            return apply()
        return self._aggregation.apply_gradients(apply, None, pairs, global_step=global_step)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return the variables of the optimizer."""
        return self._optimizer.variables(*args, **kwargs)
