"""Sums over chunks of examples that are identical to the last bit for any number of workers.

The chunks are assigned to a fixed number of partial sums. One worker computes each partial sum, in the order of its
chunks; then every worker adds up the partial sums, in their order. The number of workers determines who computes a
partial sum, but never the order of the additions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rueda.world import World, current

MOST_PARTS = 8
"""the largest number of partial sums, and so of workers that can share a sum"""


class ReproducibleSum:
    """A function that adds up a vector over the chunks of a set of examples.

    Args:
        num_examples: the number of examples.
        chunk: the number of examples in a chunk.
        world: the workers; by default ``rueda.world.current()``.

    >>> total = ReproducibleSum(10, 4)  # chunks that begin at 0, 4 and 8
    >>> total(lambda start: torch.tensor([float(start)], dtype=torch.float64), 1)
    tensor([12.], dtype=torch.float64)
    """

    def __init__(self, num_examples: int, chunk: int, *, world: World | None = None) -> None:
        self._starts = range(0, num_examples, chunk)
        self._num_parts = min(MOST_PARTS, len(self._starts))
        self._world = world or current()

    def __call__(self, compute: Callable[[int], Tensor], length: int, device: torch.device | None = None) -> Tensor:
        """Return the sum of ``compute(start)``, a float64 vector [length], over all chunks; every worker must call it.

        Args:
            compute: returns the vector of the chunk that begins at an example.
            length: the length of the vectors.
            device: the device of the sum.
        """
        rows = -(-self._num_parts // self._world.size)  # equal on all workers, as all_gather requires
        sums = torch.zeros(rows, length, dtype=torch.float64, device=device)
        for row, part in enumerate(range(self._world.rank, self._num_parts, self._world.size)):
            for start in self._starts[part :: self._num_parts]:
                sums[row] += compute(start)
        gathered = torch.stack(self._world.all_gather(sums), dim=1).flatten(0, 1)[: self._num_parts]
        total = gathered[0].clone()
        for one in gathered[1:]:
            total += one
        return total
