"""Batches for evaluation, in which every example counts exactly once on any number of workers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rueda.data.arrays import Arrays, check_arrays
from rueda.data.batcher import Batcher
from rueda.data.partition import check_worker, evaluation_share
from rueda.data.stream import Ranked, batch_device, current_world
from rueda.errors import DataError


class EvalLoader:
    """Iterates over this worker's batches ``(inputs, targets, weights)``, in the order of the data.

    ``weights`` is 1 for an example and 0 for padding, which fills the last batch so that it has the same size on all
    workers. Weighted sums, added over the workers, equal those of a single worker.

    Args:
        data: the examples.
        batch: number of examples per batch of this worker; it may exceed the size of the data.
        world: gives the rank and the number of workers; by default the current world.
        dtype: dtype of the inputs.
        device: device of the batches, see :class:`Loader`.

    >>> data = Arrays(torch.zeros(5, 1), torch.arange(5))
    >>> [(targets.tolist(), weights.tolist()) for inputs, targets, weights in EvalLoader(data, batch=3)]
    [([0, 1, 2], [1.0, 1.0, 1.0]), ([3, 4], [1.0, 1.0])]
    """

    def __init__(
        self,
        data: Arrays,
        batch: int,
        *,
        world: Ranked | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        check_arrays(data)
        world = world or current_world()
        check_worker(world.rank, world.size)
        if batch < 1:
            raise DataError("batch", expected="1 or more", got=batch, do="choose a larger batch")
        self.data, self.batch, self.rank, self.size = data, batch, world.rank, world.size
        self._batcher = Batcher(data, dtype=dtype, device=batch_device(world, device))

    def __len__(self) -> int:
        """Return the number of batches, the same on every worker."""
        return -(-len(self.data) // (self.batch * self.size))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for position in range(0, len(self.data), self.batch * self.size):
            indices, weights = evaluation_share(len(self.data), position, self.batch, self.rank, self.size)
            inputs, targets = self._batcher.finish(*self._batcher.gather(indices))
            yield inputs, targets, torch.from_numpy(weights).to(inputs.device, non_blocking=True)
