"""Batches for training from data in memory, made whole: index, augment, convert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rueda.data.arrays import Arrays
from rueda.data.augment import Augmentation
from rueda.data.background import Background, Call
from rueda.data.batcher import Batcher, EpochDraws
from rueda.data.partition import example_keys
from rueda.data.stream import Batch, Ranked, Stream, batch_device
from rueda.errors import DataError

_Key = tuple[int, int, int, int, str]  # epoch, position, local batch, seed, partition


class Loader(Stream):
    """Give this worker's batches ``(inputs, targets)`` of an :class:`Arrays`, epoch after epoch.

    Args:
        data: the examples, on the CPU or on the device where the batches are wanted.
        batch: examples that *this worker* takes at each step; the global batch is ``batch * world.size``.
        world: which worker this is; by default the current world.
        seed: of the order and the augmentation; the same on all workers.
        partition: ``shards`` or ``random``, see :mod:`rueda.data.partition`.
        remainder: of the epoch that fills no batch: ``drop`` it, or ``pad`` it with examples from the epoch's start.
        augment: augmentations, in this order; see :mod:`rueda.data.augment`.
        prefetch: how many batches a thread makes ready in advance; by default 2 where batches are sent to a GPU, else
            0, because on a CPU that computes, the thread takes its time from the computation.
        reuse_buffers: use a batch's memory again as soon as nobody holds it any more.
        dtype: of the inputs; whole-number inputs other than bytes keep their own.
        device: where batches are wanted; by default where the world computes, if it says so, else where the data lie.

    >>> data = Arrays(torch.arange(6.0).reshape(6, 1), torch.arange(6))
    >>> loader = Loader(data, batch=2, seed=1)
    >>> [targets.tolist() for inputs, targets in loader], [targets.tolist() for inputs, targets in loader]
    ([[4, 3], [0, 2], [1, 5]], [[2, 0], [5, 4], [3, 1]])
    >>> loader.state_dict()
    {'epoch': 2, 'position': 0, 'seed': 1, 'partition': 'shards', 'num_examples': 6}
    """

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
        reuse_buffers: bool = True,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(len(data), batch, world=world, seed=seed, partition=partition, remainder=remainder)
        self._batcher = Batcher(
            data, augment, dtype=dtype, device=batch_device(world, device), reuse_buffers=reuse_buffers
        )
        if prefetch is None:
            prefetch = 2 if self._batcher.way == "send" else 0
        if prefetch < 0:
            raise DataError("prefetch", expected="0 or more batches", got=prefetch, do="correct it")
        self.prefetch = prefetch
        self._ready: dict[_Key, Call] = {}
        self._thread: Background | None = None
        self._drawn: tuple[tuple[int, int], EpochDraws] | None = None

    def close(self) -> None:
        """End the thread that makes batches ready; the next batch would start another."""
        self._forget()
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the next unseen example of a saved state, which may come from another number of workers."""
        self.close()  # what is made ready belongs to another place
        super().load_state_dict(state)

    def _forget(self) -> None:
        for call in self._ready.values():
            call.cancel()
        self._ready.clear()

    def _fetch(self, epoch: int, position: int, local_batch: int) -> Batch:
        if self.prefetch == 0:
            return self._batcher.finish(*self._gather(epoch, position, local_batch))
        step, places = local_batch * self.size, [position]
        while len(places) <= self.prefetch and self._has_batch(places[-1] + step, local_batch):
            places.append(places[-1] + step)
        ready, self._ready = self._ready, {}
        wanted = [(epoch, place, local_batch, self.seed, self.partition) for place in places]
        for key in ready.keys() - set(wanted):
            ready[key].cancel()  # made ready for another place or another batch
        for key in wanted:
            self._ready[key] = ready.get(key) or self._submit(*key[:3])
        try:
            return self._batcher.finish(*self._ready.pop(wanted[0]).result())
        except BaseException:  # also Ctrl-C: nothing is left to do for the thread, nothing holds it
            self._forget()
            raise

    def _gather(self, epoch: int, position: int, local_batch: int) -> tuple[Any, ...]:
        share = self._share(position, local_batch)
        return self._batcher.gather(np.ascontiguousarray(self._order_of(epoch)[share]), self._draws(epoch), share)

    def _draws(self, epoch: int) -> EpochDraws | None:
        """Draw the augmentation of the whole epoch at once: a few milliseconds, and nothing left to do per batch."""
        if not self._batcher.augment:
            return None
        if self._drawn is None or self._drawn[0] != (epoch, self.seed):
            keys = example_keys(self.seed, epoch, self.num_examples)
            self._drawn = ((epoch, self.seed), EpochDraws.of(self._batcher.augment, keys))
        return self._drawn[1]

    def _submit(self, epoch: int, position: int, local_batch: int) -> Call:
        """Have a batch made by the thread, after those that it was asked for before."""
        if self._thread is None:
            self._thread = Background("rueda-loader")
        return self._thread.call(self._gather, epoch, position, local_batch)
