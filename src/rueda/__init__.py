"""Rueda takes training from one worker to many and keeps the accuracy.

The names below are all that most programs need; ``import rueda`` itself loads no torch.

==================  ==============================================================
``init``, ``finish``  open and close the world of workers
``World``             the workers: rank, size, collectives, ``wrap``, ``on_main``
``Arrays``            a data set in memory
``Loader``            whole batches of it, this worker's share, shuffled each epoch
``Task``              what to train: model, data, loss, metric
``Recipe``            how to train it
``fit``               train a task by a recipe: the twin of `rueda train`
``Run``               the folder that a training leaves
``load_task``         a built-in task by name, or one's own from a file
``RuedaError``        the root of all errors
==================  ==============================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.errors import RuedaError
from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.data import Arrays, Loader
    from rueda.records import Recipe, Run
    from rueda.tasks import Task, load_task
    from rueda.train import fit
    from rueda.world import World, finish, init

__version__ = "0.1.0"

__all__ = [
    "Arrays",
    "Loader",
    "Recipe",
    "RuedaError",
    "Run",
    "Task",
    "World",
    "__version__",
    "finish",
    "fit",
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
        "init": "world",
        "load_task": "tasks",
        "fit": "train",
    },
)


def __dir__() -> list[str]:
    return __all__
