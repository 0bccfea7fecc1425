"""``DistributedGradientTape``: a ``tf.GradientTape`` whose gradients are reduced over the ranks.

::

    with tf.GradientTape() as tape:
        loss = loss_of(model(images), labels)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.hvd.bridge.tensorflow import tf
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.tensorflow.compression import Compression, Compressor
from rueda.hvd.tensorflow.gradients import GradientReduction
from rueda.hvd.tensorflow.mpi_ops import Average


class _Distributed:
    """The methods that a distributed tape adds to the class of the tape that it wraps."""

    _reduction: GradientReduction
    _local_sources: dict[int, Any]  # by id; the source itself keeps the id from being used again

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a source (a variable) out of the exchange: this worker keeps its own."""
        self._local_sources[id(source)] = source

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the reduced gradients of ``target`` with respect to ``sources``, which may be nested.

        Args:
            target: the loss.
            sources: the variables.
            output_gradients: the gradients of the target; None: ones.
            use_generic_names: accepted for compatibility with Horovod.
            unconnected_gradients: what stands for the gradient of a source on which the target does not depend.
        """
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        # IndexedSlices are composite tensors, which tf.nest does not take apart unless asked to.
        reduced = self._reduction.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources), self._local_sources)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return pairs of a source and its gradient in two lists: those that stay local, and those that are reduced.

        A norm over all gradients, for example, needs the local ones of every rank, but the reduced ones only once.
        The arguments are those of :meth:`gradient`.
        """
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients, use_generic_names), strict=True))
        local = [pair for pair in pairs if id(pair[0]) in self._local_sources]
        return local, [pair for pair in pairs if id(pair[0]) not in self._local_sources]


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape that has recorded what ``gradtape`` has, and whose ``gradient`` reduces over the ranks.

    Args:
        gradtape: the tape; ``with`` accepts the result as well.
        device_dense: accepted for compatibility with Horovod: gradients are reduced on the device on which they are.
        device_sparse: likewise, for IndexedSlices.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        sparse_as_dense: convert IndexedSlices to dense gradients first.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: with Average, the part of the division that is done before the sum.
        num_groups: the older form of ``groups``.
        groups: accepted for compatibility with Horovod: all gradients are sent together.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local sources by the number of ranks.
    """
    made: Any = type(gradtape.__class__.__name__, (_Distributed, gradtape.__class__), {})
    tape = made.__new__(made)
    tape.__dict__.update(gradtape.__dict__)
    tape._local_sources = {}
    tape._reduction = GradientReduction(
        compression=compression, sparse_as_dense=sparse_as_dense, op=op,
        gradient_predivide_factor=gradient_predivide_factor, num_groups=num_groups, groups=groups,
        process_set=process_set, scale_local_gradients=scale_local_gradients,
    )  # fmt: skip
    return tape


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a distributed tape that leaves the gradients of ``local_layers``, a layer or several, out of the exchange.

    The other arguments are those of :func:`DistributedGradientTape`.
    """
    layer_type = tf.keras.layers.Layer
    layers = [] if local_layers is None else [local_layers] if isinstance(local_layers, layer_type) else local_layers
    if not all(isinstance(layer, layer_type) for layer in layers):
        raise ValueError("local_layers: expected layers of tf.keras.layers; give a layer or a list of layers")
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
            # tf.GradientTape takes the variables of Keras 3, or the TensorFlow variables behind them.
            tape.register_local_source(getattr(variable, "_value", variable))
    return tape
