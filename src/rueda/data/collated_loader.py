"""What loaders of examples have in common: how a batch is made of them, in which processes, and where it is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from rueda.data.loader import Loader
from rueda.data.stream import Batch
from rueda.data.transfer import Transfer
from rueda.data.waiting import Waiting
from rueda.errors import DataError

Collate = Callable[[list[Any]], Any]


class CollatedLoader(Loader):
    """A loader that reads examples one by one and collates them, here or in processes of torch's DataLoader."""

    device: torch.device | None

    def _prepare_reading(self, num_workers: int, options: dict[str, Any]) -> None:
        """Take the arguments for DataLoader; for a GPU, batches go through pinned memory.

        Args:
            num_workers: number of processes that read batches in advance.
            options: ``collate_fn`` and other arguments of DataLoader.
        """
        self._num_workers, self._options = num_workers, checked_options(options)
        self._collate: Collate = self._options.pop("collate_fn", None) or default_collate
        self._pins = self._options.pop("pin_memory", self.device is not None and self.device.type == "cuda")
        self._transfer = None if self.device is None or self.device.type == "cpu" else Transfer(self.device)
        self._waiting = Waiting(num_workers, speaks=self.rank == 0)

    def _send(self, batch: Any) -> Batch:
        """Copy a batch to the device of the loader."""
        return batch if self._transfer is None else self._transfer.batch(batch)


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the arguments for DataLoader, of which none may be unknown or contradict the loader."""
    own = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "drop_last", "self"}
    known = sorted(inspect.signature(DataLoader.__init__).parameters.keys() - own)
    for name in options:
        if name not in known:
            raise DataError("Loader", expected=f"arguments for this kind of data ({', '.join(known)})", got=name,
                            do="leave it out; augment, prefetch and dtype are for rueda.Arrays")  # fmt: skip
    return dict(options)
