"""The data sets of the built-in tasks: generated, or read from their published files.

>>> names()
['glyphs', 'fashion-mnist', 'cifar-10']
>>> load("glyphs", "test", num_examples=100)
Arrays(100 examples of uint8 [1, 28, 28])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rueda.data.arrays import Arrays
from rueda.errors import DataError
from rueda.tasks.datasets import store
from rueda.tasks.datasets.cifar10 import Cifar10
from rueda.tasks.datasets.fashion_mnist import FashionMnist
from rueda.tasks.datasets.glyphs import glyphs
from rueda.tasks.datasets.published import Progress, Published

PUBLISHED: dict[str, Published] = {each.name: each for each in (FashionMnist(), Cifar10())}

__all__ = ["PUBLISHED", "get", "glyphs", "load", "names", "published"]


def names() -> list[str]:
    """Return the names that :func:`load` accepts."""
    return ["glyphs", *PUBLISHED]


def published(name: str) -> Published:
    """Return the published data set of a name."""
    if name not in PUBLISHED:
        wanted = ", ".join(PUBLISHED)
        advice = "it is generated, so there is nothing to download" if name == "glyphs" else "choose one of them"
        raise DataError("data set", expected=wanted, got=name, do=advice)
    return PUBLISHED[name]


def load(name: str, split: str = "train", directory: str | Path | None = None, **options: Any) -> Arrays:
    """Load the ``train`` or ``test`` examples of a data set; download the set first if it is not on the machine.

    Every worker must call it: local rank 0 of each machine downloads, the others wait. In an elastic job, in which
    fresh workers load their data while others train, no worker waits for another.

    Args:
        name: ``glyphs``, ``fashion-mnist`` or ``cifar-10``.
        split: ``train`` or ``test``.
        directory: the folder of the published files; by default those of :mod:`rueda.tasks.datasets.store`.
        options: options of a generated set, see :func:`glyphs`.

    Raises:
        DataError: the set is unknown, missing or corrupt.
    """
    if name == "glyphs":
        return glyphs(split, **options)
    if name not in PUBLISHED or options:
        got = f"{name} with {', '.join(options)}" if options else name
        raise DataError("data set", expected=", ".join(names()), got=got, do="choose one of them")
    from rueda.world import current, elastic

    wanted = PUBLISHED[name]
    if elastic.is_elastic():
        folder = store.find_or_fetch(wanted, directory, fetch=True)
    else:
        world = current()
        with world.local_main_first():
            folder = store.find_or_fetch(wanted, directory, fetch=world.local_rank == 0)
    return wanted.arrays(lambda file: wanted.read(folder, file), split)


def get(name: str, directory: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of a published data set after verifying all its files.

    Args:
        name: the name of the set.
        directory: copy the files from this folder into the cache; by default an existing copy is used, or the set is
            downloaded.
        progress: is called with a name, the amount done and the total.
    """
    return store.install(published(name), directory, progress)
