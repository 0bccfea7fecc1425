"""Loaders for a task's data: arrays are read in whole batches, any other data set or stream example by example."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from rueda.data import Arrays, EvalLoader, Loader
from rueda.errors import DataError
from rueda.records import Recipe
from rueda.tasks.task import Data, Task
from rueda.train.micro_batches import convert_floats
from rueda.world import World


def training_loader(task: Task, data: Data, recipe: Recipe, world: World, dtype: torch.dtype) -> Loader:
    """Return a loader of this worker's shard of the training data, in batches of at most ``recipe.local_batch``.

    The recipe may be for fewer workers than there are: then each has a smaller part of the global batch.

    Args:
        task: provides augmentation (of arrays) and the collate function (of other data).
        data: the training data: arrays, a data set with an index, or a stream.
        recipe: the batch, the partition, the seed and the number of loader processes.
        world: the workers.
        dtype: the dtype of the inputs, if the data are arrays.
    """
    options: dict[str, Any] = {"seed": recipe.seed, "partition": recipe.partition, "remainder": recipe.remainder}
    batch = min(recipe.local_batch, max(1, recipe.global_batch // world.size))
    if isinstance(data, Arrays):
        return Loader(data, batch, world=world, augment=task.augment, dtype=dtype, **options)
    processes = recipe.loader_processes
    if processes is None:  # on a CPU they would compete with the training, and a daemonic process may not start any
        processes = 2 if world.device.type == "cuda" and not multiprocessing.current_process().daemon else 0
    return Loader(data, batch, world=world, num_workers=processes, collate_fn=task.collate or collate, **options)


def collate(examples: list[Any]) -> Any:
    """Collate examples by torch's ``default_collate``; explain in one line if they have different shapes.

    >>> collate([{"x": torch.zeros(2)}, {"x": torch.ones(2)}])["x"].shape
    torch.Size([2, 2])
    """
    try:
        return default_collate(examples)
    except (RuntimeError, TypeError) as error:
        got = str(error).splitlines()[0] if str(error) else type(error).__name__
        do = "give the task a collate function, which pads the examples or keeps them as a list"
        raise DataError("collating a batch", expected="examples of one structure and shape", got=got, do=do) from None


def evaluation_loader(
    data: Data,
    batch: int,
    world: World,
    dtype: torch.dtype,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> EvalLoader | DatasetEvaluation:
    """Return a loader of this worker's shard of validation or test data.

    Its batches are ``(inputs, targets, weights)``, or ``(batch, weights)`` where a batch is no such pair.

    Args:
        data: arrays, a data set with an index, or a stream.
        batch: examples per batch of this worker.
        world: the workers.
        dtype: the dtype of floating-point tensors.
        collate_fn: makes a batch of a list of examples, if the data are not arrays.
    """
    if isinstance(data, Arrays):
        return EvalLoader(data, batch, world=world, dtype=dtype)
    return DatasetEvaluation(data, batch, world, dtype, collate_fn or collate)


def without_weights(item: Sequence[Any]) -> Any:
    """Return the batch of an evaluation as the task knows it, without the weights of its examples."""
    return tuple(item[:-1]) if len(item) > 2 else item[0]


class DatasetEvaluation:
    """Iterates over this worker's share of a torch data set or a stream, in the dtype of the training.

    Only real examples are collated, so that padding changes neither the lengths nor the contents of a batch. A worker
    without any in the last batch gets one example with weight 0.
    """

    def __init__(
        self, data: Any, batch: int, world: World, dtype: torch.dtype, collate_fn: Callable[[list[Any]], Any]
    ) -> None:
        self._loader = EvalLoader(data, batch, world=world, collate_fn=collate_fn, padded=False)
        self._dtype = dtype

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for found, weights in self._loader.batches():
            batch = convert_floats(found, self._dtype)
            is_pair = type(batch) in (tuple, list) and len(batch) == 2
            yield (*(batch if is_pair else (batch,)), weights)
