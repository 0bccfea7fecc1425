"""Batches for training from data in memory; each batch is indexed, augmented and converted as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rueda.data.arrays import Arrays
from rueda.data.augment import Augmentation
from rueda.data.background import Background, Call
from rueda.data.batcher import Batcher, EpochDraws
from rueda.data.loader import Loader
from rueda.data.partition import example_keys
from rueda.data.stream import Batch, Ranked, Stream, batch_device
from rueda.errors import DataError

_Key = tuple[int, int, int, int, str]  # epoch, position, global batch, seed, partition


class ArrayLoader(Loader):
    """Iterates over this worker's batches ``(inputs, targets)`` of an :class:`Arrays`; see :class:`rueda.Loader`."""

    def __init__(
        self,
        data: Arrays,
        batch: int,
        *,
        world: Ranked | None = None,
        seed: int = 0,
        partition: str = "shards",
        remainder: str = "drop",
        augment: Sequence[Augmentation] = (),
        prefetch: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        Stream.__init__(self, len(data), batch, world=world, seed=seed, partition=partition, remainder=remainder)
        self._batcher = Batcher(data, augment, dtype=dtype, device=batch_device(world, device))
        if prefetch is None:
            prefetch = 2 if self._batcher.way == "send" else 0
        if prefetch < 0:
            raise DataError("prefetch", expected="0 or more batches", got=prefetch, do="correct it")
        self.prefetch = prefetch
        self._ready: dict[_Key, Call] = {}
        self._thread: Background | None = None
        self._drawn: tuple[tuple[int, int], EpochDraws] | None = None

    def close(self) -> None:
        """End the prefetching thread; the next batch starts a new one."""
        self._forget()
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the next unseen example of a saved state, which may come from another number of workers."""
        self.close()  # prefetched batches belong to the old position
        super().load_state_dict(state)

    def _forget(self) -> None:
        for call in self._ready.values():
            call.cancel()
        self._ready.clear()

    def _fetch(self, epoch: int, position: int, total: int) -> Batch:
        if self.prefetch == 0:
            return self._batcher.finish(*self._gather(epoch, position, total))
        places = [position]
        while len(places) <= self.prefetch and self._has_batch(places[-1] + total, total):
            places.append(places[-1] + total)
        ready, self._ready = self._ready, {}
        wanted = [(epoch, place, total, self.seed, self.partition) for place in places]
        for key in ready.keys() - set(wanted):
            ready[key].cancel()  # prefetched for another position or batch size
        for key in wanted:
            self._ready[key] = ready.get(key) or self._submit(*key[:3])
        try:
            return self._batcher.finish(*self._ready.pop(wanted[0]).result())
        except BaseException:  # also Ctrl-C: cancel the thread's calls
            self._forget()
            raise

    def _gather(self, epoch: int, position: int, total: int) -> tuple[Any, ...]:
        share = self._share(position, total)
        return self._batcher.gather(np.ascontiguousarray(self._order_of(epoch)[share]), self._draws(epoch), share)

    def _draws(self, epoch: int) -> EpochDraws | None:
        """Return the random choices of the augmentations for the whole epoch; drawing them takes a few milliseconds."""
        if not self._batcher.augment:
            return None
        if self._drawn is None or self._drawn[0] != (epoch, self.seed):
            keys = example_keys(self.seed, epoch, self.num_examples)
            self._drawn = ((epoch, self.seed), EpochDraws.of(self._batcher.augment, keys))
        return self._drawn[1]

    def _submit(self, epoch: int, position: int, total: int) -> Call:
        """Queue a batch for the prefetching thread."""
        if self._thread is None:
            self._thread = Background("rueda-loader")
        return self._thread.call(self._gather, epoch, position, total)
