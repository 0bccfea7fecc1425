"""Loaders for a task's data: arrays are read in whole batches, any other torch data set example by example."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from rueda.data import Arrays, DatasetLoader, EvalLoader, Loader
from rueda.data.partition import evaluation_share
from rueda.records import Recipe
from rueda.tasks.task import Data, Task
from rueda.world import World


def training_loader(task: Task, data: Data, recipe: Recipe, world: World, dtype: torch.dtype) -> Loader | DatasetLoader:
    """Return a loader of this worker's shard of the training data, in batches of ``recipe.local_batch``."""
    options: dict[str, Any] = {"seed": recipe.seed, "partition": recipe.partition, "remainder": recipe.remainder}
    if isinstance(data, Arrays):
        return Loader(data, recipe.local_batch, world=world, augment=task.augment, dtype=dtype, **options)
    processes = recipe.loader_processes
    if processes is None:  # on a CPU they would compete with the training, and a daemonic process may not start any
        processes = 2 if world.device.type == "cuda" and not multiprocessing.current_process().daemon else 0
    return DatasetLoader(data, recipe.local_batch, world=world, num_workers=processes, **options)


def evaluation_loader(data: Data, batch: int, world: World, dtype: torch.dtype) -> EvalLoader | DatasetEvaluation:
    """Return a loader of this worker's shard of the test data: batches (inputs, targets, weights)."""
    if isinstance(data, Arrays):
        return EvalLoader(data, batch, world=world, dtype=dtype)
    return DatasetEvaluation(data, batch, world)


class DatasetEvaluation:
    """Iterates over this worker's shard of a torch data set; examples that only pad the last batch have weight 0."""

    def __init__(self, data: Any, batch: int, world: World) -> None:
        self._data, self._batch, self._world = data, batch, world

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        world, count = self._world, len(self._data)
        for position in range(0, count, self._batch * world.size):
            indices, weights = evaluation_share(count, position, self._batch, world.rank, world.size)
            inputs, targets = default_collate([self._data[int(index)] for index in indices])
            yield inputs.to(world.device), targets.to(world.device), torch.from_numpy(weights).to(world.device)
