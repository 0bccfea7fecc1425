"""Batch norm in training: the kind that the recipe asks for, and recalibration before an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from rueda.data import Arrays
from rueda.data.length import indexed
from rueda.errors import RecipeError
from rueda.nn import apply_ghost_batch_norm, needs_recalibration, recalibrate, to_sync_batch_norm
from rueda.nn.convert import BatchNorm
from rueda.records import Recipe
from rueda.tasks.task import Data, Task
from rueda.train.layout import memory_format
from rueda.train.loaders import evaluation_loader, without_weights
from rueda.train.step_module import arranged
from rueda.world import World
from rueda.world.gathering import gathering_alone

RECALIBRATION_EXAMPLES = 8192
"""number of training examples used; all of them would take a third of an epoch and change the statistics little"""
SYNCHRONISED_EXAMPLES = 256
"""largest batch of a recalibration with synchronised statistics: one worker's memory must hold it"""


def has_batch_norm(model: nn.Module) -> bool:
    """Tell whether a model has batch norm of any kind.

    >>> has_batch_norm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))), has_batch_norm(nn.LayerNorm(3))
    (True, False)
    """
    return any(isinstance(module, BatchNorm) for module in model.modules())


def convert(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Replace the model's batch norm by the kind that the recipe asks for."""
    wanted = "ghost_batch" if recipe.ghost_batch is not None else "sync_batch_norm" if recipe.sync_batch_norm else None
    if wanted is None:
        return model
    if not has_batch_norm(model):
        raise RecipeError(
            f"{wanted} needs a model with batch norm, and this one has none; leave it out, or set "
            "model.batch_norm = true where the task supports it"
        )
    if recipe.ghost_batch is not None:
        return apply_ghost_batch_norm(model, ghost_batch=recipe.ghost_batch)
    return to_sync_batch_norm(model)


class Recalibration:
    """Recomputes batch-norm statistics before an evaluation where the running averages are still biased.

    After few steps a running average is still near its initial value: after 16 steps at momentum 0.1 that value has a
    weight of a fifth, and this alone can reduce test accuracy to 25 %. ``auto`` recalibrates if it exceeds 1 %.

    Args:
        task: provides the step or the loss, with which the model is run.
        recipe: when to recalibrate, and the batch.
        world: the workers.
        model: the model whose statistics are recomputed.
        data: the training data.
        place: this worker's place among those that divide the data; by default among all.
        compute: runs the model on a batch; by default the task does.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        model: nn.Module,
        data: Data,
        *,
        place: World | None = None,
        compute: Callable[[nn.Module, Any], object] | None = None,
    ) -> None:
        self._recipe, self._world, self._model, self._data = recipe, world, model, data
        self._place, self._compute = place or world, compute or task.run_step
        self._task, self._memory_format = task, memory_format(model, recipe)
        self._has_norm = any(isinstance(m, BatchNorm) and m.running_mean is not None for m in model.modules())

    def wanted(self, num_updates: int) -> bool:
        """Return whether to recalibrate, given the number of updates since the last recalibration."""
        if not self._has_norm or self._recipe.recalibrate == "never":
            return False
        local_batch = self._recipe.local_batch
        return self._recipe.recalibrate == "always" or needs_recalibration(
            self._model, num_updates, local_batch=local_batch
        )

    def run(self) -> None:
        """Recompute the statistics over training examples, the first ones of a stream; all workers must call it.

        The batches have one worker's size and do not depend on the number of workers, real or rehearsed; they are
        divided among the workers. With synchronised statistics, a batch of all workers is what the network is trained
        on: a worker's own may hold a single example.
        """
        dtype = next(self._model.parameters()).dtype
        data = indexed(self._data, RECALIBRATION_EXAMPLES)
        size = self._recipe.batch
        if self._recipe.sync_batch_norm:
            size = max(size, min(self._recipe.global_batch, SYNCHRONISED_EXAMPLES, len(data)))
        batches = spread_batches(len(data), size)
        mine = [index for one in batches[self._place.rank :: self._place.size] for index in one]
        alone = World(device=self._world.device)
        collate = self._task.collate
        with gathering_alone():
            recalibrate(
                self._model,
                evaluation_loader(_subset(data, mine), size, alone, dtype, collate) if mine else (),
                forward=self._forward,
                world=self._world,
                sharers=self._world.size // self._place.size,
            )

    def _forward(self, model: nn.Module, item: Sequence[Any]) -> object:
        return self._compute(model, arranged(without_weights(item), self._memory_format))


def spread_batches(num_examples: int, batch: int) -> list[list[int]]:
    """Choose the examples of each recalibration batch, evenly spread, since a data set may be sorted by class.

    >>> spread_batches(num_examples=9, batch=4)
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    num_batches = max(1, min(num_examples, RECALIBRATION_EXAMPLES) // batch)
    count = num_batches * batch
    indices = [number * num_examples // count for number in range(count)]
    return [indices[first::num_batches] for first in range(num_batches)]


def _subset(data: Data, indices: list[int]) -> Data:
    from torch.utils.data import Subset

    return data.subset(indices) if isinstance(data, Arrays) else Subset(data, indices)
