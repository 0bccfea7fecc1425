"""Replace the batch-norm layers of a model, and keep everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from rueda.errors import RecipeError
from rueda.nn.ghost_batch_norm import GhostBatchNorm, GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from rueda.nn.ghost_sizes import checked_ghost_batch

BatchNorm = nn.modules.batchnorm._BatchNorm
Layer = TypeVar("Layer", bound=BatchNorm)


def apply_ghost_batch_norm(model: nn.Module, *, ghost_batch: int) -> nn.Module:
    """Replace every batch-norm layer of `model` by a ghost batch norm.

    Parameters and buffers are the same objects as before, so an optimizer that holds them stays valid; names,
    `momentum`, `eps`, hooks and the training mode are kept as well. A layer that is a ghost batch norm already gets the
    new ghost size. A layer that is used in several places is still a single layer afterwards.

    Args:
        model: it is changed in place; a model that is itself a batch-norm layer is replaced.
        ghost_batch: examples per ghost.

    Returns:
        The model, or its replacement if it is itself a batch-norm layer.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> apply_ghost_batch_norm(model, ghost_batch=32)[1]
    GhostBatchNorm2d(8, eps=1e-05, momentum=0.1, ..., ghost_batch=32)
    """
    checked_ghost_batch(ghost_batch)

    def ghost(layer: BatchNorm) -> nn.Module:
        if isinstance(layer, GhostBatchNorm):
            return converted_to(layer, type(layer), ghost_batch=ghost_batch)
        for known, kind in _GHOSTS.items():
            if isinstance(layer, known):
                return converted_to(layer, kind, ghost_batch=ghost_batch)
        raise RecipeError(
            f"apply_ghost_batch_norm on {type(layer).__name__}",
            expected="BatchNorm1d, 2d or 3d",
            got="statistics shared by the workers, which ghosts would undo",
            do="convert the model to one of the two",
        )

    return replace_batch_norm(model, ghost)


_GHOSTS: dict[type[BatchNorm], type[GhostBatchNorm]] = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
    nn.BatchNorm3d: GhostBatchNorm3d,
}


def replace_batch_norm(model: nn.Module, replacement: Callable[[BatchNorm], nn.Module]) -> nn.Module:
    """Replace each batch-norm layer by `replacement(layer)`; if that raises for one layer, none is replaced."""
    layers = [each for each in model.modules() if isinstance(each, BatchNorm)]
    for layer in layers:
        if isinstance(layer, LazyModuleMixin):  # its size is unknown before the first batch
            raise RecipeError(
                "the model", expected="layers of known size", got=type(layer).__name__, do="run a batch first"
            )
    found = {layer: replacement(layer) for layer in layers}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in found:
                parent._modules[name] = found[child]
    return found.get(model, model)  # type: ignore[call-overload, no-any-return]


def converted_to(layer: BatchNorm, kind: type[Layer], **attributes: object) -> Layer:
    """Return a layer of another class with the same parameters, buffers, options, hooks and mode.

    They are shared with the old layer, not copied.
    """
    new = kind.__new__(kind)
    new.__dict__.update(layer.__dict__)  # a module's state is its dictionary: parameters, buffers, hooks, options
    for name, value in attributes.items():
        setattr(new, name, value)
    return new
