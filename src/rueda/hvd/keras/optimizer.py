"""``DistributedOptimizer`` for Keras: any optimizer, applied to gradients that are averaged over all workers.

The result is an instance of a class made for the purpose, with the name of the wrapped optimizer's class as its name
and that class as its base. So ``isinstance`` holds, callbacks find the attributes that they expect, and a saved model
is one that plain Keras can load.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rueda.hvd.bridge.gradients import GradientExchange
from rueda.hvd.common.process_sets import ProcessSet, global_process_set
from rueda.hvd.core.entries import AVERAGE
from rueda.hvd.keras import family as families
from rueda.hvd.torch.compression import Compression, Compressor


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer whose gradients are averaged over all workers; it is an instance of the wrapped one's class.

    Args:
        optimizer: any optimizer of Keras 3 or tf_keras, also a ``LossScaleOptimizer``. It is copied with its
            configuration and, if it is built in Keras 3, with its state.
        name: the name of the collective; by default ``Distributed`` and the name of the class.
        device_dense: accepted for compatibility with Horovod; gradients are reduced on the device where they are.
        device_sparse: as ``device_dense``.
        compression: ``Compression.fp16`` or ``.bf16`` sends half the bytes.
        sparse_as_dense: reduce ``tf.IndexedSlices`` as dense gradients instead of gathering them.
        gradient_predivide_factor: with Average, gradients are divided by this factor before the sum and by the number
            of workers over this factor after it, which avoids overflow in half precision.
        op: Average, Sum, Adasum, Min, Max or Product.
        backward_passes_per_step: the number of batches whose gradients are accumulated before they are reduced and
            applied.
        average_aggregated_gradients: average over these batches instead of summing.
        num_groups: the older form of ``groups=N``.
        groups: a number of groups, or lists of variables whose gradients are reduced together. All gradients of a step
            are one collective here, so that every grouping holds.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local variables (``register_local_var``) by the number of
            workers, as if they were averaged with zeros.

    Raises:
        ValueError: arguments contradict each other.
    """
    if num_groups:
        warnings.warn(  # scripts filter by the beginning of this message, which is Horovod's
            "Parameter `num_groups` has been replaced by `groups`: give groups=N", DeprecationWarning, stacklevel=2
        )
    _check_groups(groups if groups is not None else num_groups)
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step: expected 1 or more, got {backward_passes_per_step}; correct it")
    family = families.family_of(optimizer)
    exchange = GradientExchange(
        name or f"Distributed{type(optimizer).__name__}", op, gradient_predivide_factor, compression, process_set
    )
    options = Options(
        family=family,
        exchange=exchange,
        sparse_as_dense=sparse_as_dense,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        scale_local=scale_local_gradients,
    )
    return distribute(copy_of(optimizer), options)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a distributed optimizer that leaves the gradients of some layers to each worker.

    Args:
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op: see
            :func:`DistributedOptimizer`.
        backward_passes_per_step, average_aggregated_gradients, groups, process_set: see there.
        local_layers: a layer or several, which must be built, whose variables differ between the workers.
        scale_local_gradients: divide their gradients by the number of workers.
    """
    made = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, 0, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    layers = [] if local_layers is None else local_layers
    for layer in layers if isinstance(layers, Iterable) else [layers]:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(
                f"local_layers: expected layers of Keras, got {type(layer).__name__}; give model.layers[i]"
            )
        for variable in layer.trainable_weights:
            made.register_local_var(variable)
    return made


@dataclass(eq=False, kw_only=True)
class Options:
    """What a distributed optimizer knows beyond the wrapped one."""

    family: str
    exchange: GradientExchange
    sparse_as_dense: bool = False
    passes: int = 1
    """batches whose gradients are accumulated before they are reduced"""
    average_passes: bool = False
    scale_local: bool = True
    local: set[Any] = field(default_factory=set)
    """keys of the variables whose gradients are not reduced"""
    keys: list[Any] = field(default_factory=list)
    """keys of the variables whose accumulated gradients are being applied"""
    sums: Any = None
    """tf_keras: the accumulated gradients, by key, and the number of batches in them"""
    num_passes: Any = None
    reduced: bool = False
    """whether an enclosing call has reduced the gradients that are being applied"""


def distribute(optimizer: Any, options: Options) -> Any:
    """Change the class of an optimizer to one that reduces its gradients, and return the optimizer."""
    if options.family == families.KERAS:
        from rueda.hvd.keras import keras3

        return keras3.distribute(optimizer, options)
    from rueda.hvd.keras import keras2

    return keras2.distribute(optimizer, options)


@cache
def made_class(base: Any, mixin: type) -> Any:
    """Return the class of a distributed optimizer.

    ``made.__class__`` is the wrapped class, so that what Keras writes into a saved model is what it writes for the
    wrapped one: its module, and the name under which a user has registered it.
    """
    own = {"__class__": property(lambda self: base), "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base)(base.__name__, (mixin, base), own)


def change_class(optimizer: Any, mixin: type, options: Options) -> Any:
    """Give an optimizer the methods of a mix-in, and its options."""
    base: Any = type(optimizer)
    object.__setattr__(optimizer, "__class__", made_class(base, mixin))
    object.__setattr__(optimizer, "_hvd", options)
    return optimizer


def copy_of(optimizer: Any) -> Any:
    """Return an optimizer of the same class and configuration; in Keras 3 also with the same state, if it is built."""
    plain = getattr(optimizer, "__class__")  # of a distributed optimizer, the class that it wraps  # noqa: B009
    copied = plain.from_config(optimizer.get_config())
    if getattr(optimizer, "built", False) and hasattr(optimizer, "_trainable_variables"):
        copied.build(optimizer._trainable_variables)
        for new, old in zip(copied.variables, optimizer.variables, strict=True):
            new.assign(old)
    return copied


def _check_groups(groups: Any) -> None:
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups: expected at least 0, or lists of variables, got {groups}; correct it")
        return
    if not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError("groups: expected a number or lists of variables, got something else; give [[a, b], [c]]")
    keys = [id(variable) for group in groups for variable in group]
    if len(set(keys)) < len(keys):
        raise ValueError("groups: expected every variable in at most one group, got one in several; name it once")
