"""What a data set is told about the loaders among which it may divide itself.

The usual way of a torch ``IterableDataset`` to divide itself among loader processes is to ask
``torch.utils.data.get_worker_info()`` for ``id`` and ``num_workers``. Here it is told of the processes of *all*
workers, so that a data set which divides itself among the processes of one worker divides itself among all of them. The
pipelines of ``webdataset`` ask for the rank as well, from environment variables; they are told that there is one rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import worker

_RANK = {"RANK": "0", "WORLD_SIZE": "1"}


class LoaderInfo:
    """What ``get_worker_info()`` returns: which loader this is, of how many.

    >>> from torch.utils.data import get_worker_info
    >>> with Told(1, 4):
    ...     get_worker_info().id, get_worker_info().num_workers
    (1, 4)
    >>> get_worker_info()
    """

    def __init__(self, number: int, total: int, seed: int = 0, asked: Callable[[], None] | None = None) -> None:
        self.id, self.seed, self.dataset = number, seed, None
        self._total, self._asked = total, asked

    @property
    def num_workers(self) -> int:
        """The number of loaders; a data set that asks for it divides itself."""
        if self._asked is not None:
            self._asked()
        return self._total


class Told:
    """A context in which a data set is told that it is read by loader ``number`` of ``total``.

    Args:
        number: which loader this is.
        total: the number of loaders; if it is 1, the data set is told nothing, as by a DataLoader without processes.
        seed: the seed of this loader, as in ``get_worker_info()``.
        hides_rank: also tell that there is one rank.
        asked: called when the data set asks for the number of loaders.
    """

    def __init__(
        self,
        number: int,
        total: int,
        *,
        seed: int = 0,
        hides_rank: bool = False,
        asked: Callable[[], None] | None = None,
    ) -> None:
        self._info = LoaderInfo(number, total, seed, asked) if total > 1 else None
        self._hides_rank = hides_rank
        self._before: tuple[Any, dict[str, str | None]] = (None, {})

    def __enter__(self) -> None:
        variables = {name: os.environ.get(name) for name in _RANK} if self._hides_rank else {}
        self._before = worker._worker_info, variables
        worker._worker_info = self._info  # type: ignore[assignment]
        if self._hides_rank:
            os.environ.update(_RANK)

    def __exit__(self, *error: object) -> None:
        worker._worker_info, variables = self._before
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
