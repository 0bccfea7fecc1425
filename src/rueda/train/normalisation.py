"""Batch norm in the loop: which kind the recipe wants, and statistics that evaluation can trust."""

from __future__ import annotations

from torch import nn

from rueda.data import Arrays
from rueda.errors import RecipeError
from rueda.nn import apply_ghost_batch_norm, needs_recalibration, recalibrate, to_sync_batch_norm
from rueda.nn.convert import BatchNorm
from rueda.records import Recipe
from rueda.tasks.task import Data
from rueda.train.layout import arrange, memory_format
from rueda.train.loaders import evaluation_loader
from rueda.world import World

RECALIBRATION_EXAMPLES = 8192
"""enough for the statistics of any channel; all data would cost a third of an epoch"""


def convert(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Give the model the batch norm that the recipe asks for."""
    wanted = "ghost_batch" if recipe.ghost_batch is not None else "sync_batch_norm" if recipe.sync_batch_norm else None
    if wanted is None:
        return model
    if not any(isinstance(module, BatchNorm) for module in model.modules()):
        raise RecipeError(
            f"{wanted} needs a model with batch norm, and this one has none; leave it out, or ask the model for it "
            "(model.batch_norm = true, where the task knows it)"
        )
    if recipe.ghost_batch is not None:
        return apply_ghost_batch_norm(model, ghost_batch=recipe.ghost_batch)
    return to_sync_batch_norm(model)


class Recalibration:
    """Recomputes batch-norm statistics before an evaluation, where the running averages cannot be trusted.

    Few large steps leave them near their initial values: after 16 steps at momentum 0.1 a fifth of an average is
    still its start, and test accuracy may be 25 % from that alone. ``auto`` recalibrates where more than 1 % is left.
    """

    def __init__(self, recipe: Recipe, world: World, model: nn.Module, data: Data) -> None:
        self._recipe, self._world, self._model, self._data = recipe, world, model, data
        self._order = memory_format(model, recipe)
        self._has_norm = any(isinstance(m, BatchNorm) and m.running_mean is not None for m in model.modules())

    def wanted(self, num_updates: int) -> bool:
        """Say whether to recalibrate, after so many updates since the last time."""
        if not self._has_norm or self._recipe.recalibrate == "never":
            return False
        local_batch = self._recipe.local_batch
        return self._recipe.recalibrate == "always" or needs_recalibration(
            self._model, num_updates, local_batch=local_batch
        )

    def run(self) -> None:
        """Recompute the statistics over training examples, this worker's share; all workers must call it."""
        dtype = next(self._model.parameters()).dtype
        batch, size = self._recipe.batch, self._world.size
        full_batches = max(1, min(len(self._data), RECALIBRATION_EXAMPLES) // (batch * size))  # type: ignore[arg-type]
        loader = evaluation_loader(_first(self._data, full_batches * batch * size), batch, self._world, dtype)
        recalibrate(
            self._model,
            loader,
            forward=lambda model, part: model(arrange(part[0], self._order)),
            world=self._world,
        )


def _first(data: Data, count: int) -> Data:
    """Give ``count`` examples spread evenly over the data: sorted sets begin with one class."""
    from torch.utils.data import Subset

    total = len(data)  # type: ignore[arg-type]
    indices = [number * total // count for number in range(count)]
    return data.subset(indices) if isinstance(data, Arrays) else Subset(data, indices)
