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
    """List the data sets that :func:`load` knows."""
    return ["glyphs", *PUBLISHED]


def published(name: str) -> Published:
    """Find a published data set by its name."""
    if name not in PUBLISHED:
        wanted = ", ".join(PUBLISHED)
        advice = "it is generated: there is nothing to get" if name == "glyphs" else "choose one of them"
        raise DataError("data set", expected=wanted, got=name, do=advice)
    return PUBLISHED[name]


def load(name: str, split: str = "train", directory: str | Path | None = None, **options: Any) -> Arrays:
    """Load the ``train`` or ``test`` examples of a data set, fetching it first where it is not there.

    Call it on every worker: the first one of each machine fetches, the others wait for it.

    Args:
        name: ``glyphs``, ``fashion-mnist`` or ``cifar-10``.
        split: ``train`` or ``test``.
        directory: where the published files lie; see :mod:`rueda.tasks.datasets.store` for where else they may.
        options: of a generated set, see :func:`glyphs`.

    Raises:
        DataError: the set is unknown, missing, torn or altered.
    """
    if name == "glyphs":
        return glyphs(split, **options)
    wanted = published(name) if name in PUBLISHED else None
    if wanted is None or options:
        got = name if wanted is None else f"{name} with {', '.join(options)}"
        raise DataError("data set", expected=", ".join(names()), got=got, do="choose one of them")
    from rueda.world import current

    world = current()
    with world.local_main_first():
        folder = store.find_or_fetch(wanted, _path(directory), fetch=world.local_rank == 0)
    return wanted.arrays(lambda file: wanted.read(folder, file), split)


def get(name: str, directory: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Have a published data set, whole and verified, and say where.

    With ``directory`` the set is copied from there into the cache; without, it stays where it lies, or is downloaded.
    """
    return store.install(published(name), _path(directory), progress)


def _path(directory: str | Path | None) -> Path | None:
    return None if directory is None else Path(directory)
