"""``hvd.load_model``: a saved model, whose optimizer is distributed and has its saved state."""

from __future__ import annotations

from typing import Any

from rueda.hvd.bridge.gradients import GradientExchange
from rueda.hvd.keras import family as families
from rueda.hvd.keras.optimizer import Options, distribute
from rueda.hvd.torch.compression import Compression, Compressor


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model that was saved with or without a distributed optimizer, and make its optimizer distributed.

    Args:
        filepath: what ``keras.models.load_model`` takes.
        custom_optimizers: classes of optimizers that are not part of Keras.
        custom_objects: classes and functions by name, as ``keras.models.load_model`` takes them.
        compression: see :func:`DistributedOptimizer`.
        legacy_opts: accepted for compatibility with Horovod; the file says which optimizer it has.
    """
    family = families.current_family()
    objects = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    objects.update(custom_objects or {})
    model = families.load(family).models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if getattr(optimizer, "_trainable_variables", None) == [] and model.trainable_variables:
            optimizer.built = (
                False  # Keras 3 builds the optimizer of an HDF5 file for no variables, and loses its state
            )
        name = f"Distributed{type(optimizer).__name__}"
        distribute(optimizer, Options(family=family, exchange=GradientExchange(name, compression=compression)))
    return model
