"""Rueda takes training from one worker to many and keeps the accuracy.

Most programs need only the names below. ``import rueda`` does not import torch; the names do so when they are used.

====================  ==========================================================================
``init``, ``finish``  join and leave the process group of all workers
``World``             the workers: rank, size, collectives, ``wrap``, ``on_main``
``Arrays``            a data set in memory
``Loader``            mini-batches of this worker's shard of a data set, shuffled each epoch
``Task``              what to train: model, data, loss, metric
``Recipe``            how to train it: batch, optimizer, learning rate, epochs, ...
``fit``               train a task, as `rueda train` does
``Checkpoint``        save and resume your own training loop, or a script written for Horovod
``Run``               the folder in which a training is recorded
``load_task``         load a built-in task by name, or a user's task from a file
``gather``            the tensors of all workers with their gradient, for the step of a task
``hvd``               Horovod's interface: ``rueda.hvd.run``, ``import rueda.hvd.torch as hvd``
``RuedaError``        the base class of all errors
====================  ==========================================================================

The packages ``rueda.data``, ``rueda.nn``, ``rueda.optim`` and ``rueda.tasks`` need no import of their own either:
``rueda.data.EvalLoader``, ``rueda.nn.to_sync_batch_norm``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rueda.errors import RuedaError
from rueda.lazy import lazily
from rueda.world.extension import provide

if TYPE_CHECKING:
    from rueda import data as data
    from rueda import hvd
    from rueda import nn as nn
    from rueda import optim as optim
    from rueda import tasks as tasks
    from rueda.data import Arrays, Loader
    from rueda.records import Recipe, Run
    from rueda.tasks import Task, load_task
    from rueda.train import Checkpoint, fit
    from rueda.world import World, finish, gather, init

__version__ = "0.1.0"

__all__ = [
    "Arrays",
    "Checkpoint",
    "Loader",
    "Recipe",
    "RuedaError",
    "Run",
    "Task",
    "World",
    "__version__",
    "finish",
    "fit",
    "gather",
    "hvd",
    "init",
    "load_task",
]

__getattr__ = lazily(
    __name__,
    {
        "Arrays": "data",
        "Loader": "data",
        "Recipe": "records",
        "Run": "records",
        "Task": "tasks",
        "World": "world",
        "finish": "world",
        "gather": "world",
        "init": "world",
        "load_task": "tasks",
        "Checkpoint": "train",
        "fit": "train",
        "data": "data",
        "hvd": "hvd",
        "nn": "nn",
        "optim": "optim",
        "tasks": "tasks",
    },
)


def _share_dataloader() -> Callable[..., Any]:
    from rueda.data.dataloader import share_dataloader

    return share_dataloader


provide("loader", _share_dataloader)  # World.loader, which needs more than the world


def __dir__() -> list[str]:
    return __all__
