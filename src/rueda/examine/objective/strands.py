"""Sums over chunks of examples that are the same to the last bit for any number of workers.

The chunks are dealt to a fixed number of *strands*; each strand is added up in order by one worker, then the strands
are added up in order by all. How many workers there are decides who adds a strand, never what is added to what.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rueda.world import World, current

NUM_STRANDS = 8
"""at most so many workers share a sum"""


class Strands:
    """The chunks of some examples, dealt to strands.

    Args:
        num_examples: how many there are.
        chunk: how many at a time.
        world: the workers; by default ``rueda.world.current()``.

    >>> Strands(10, 4).sum(lambda start: torch.tensor([float(start)], dtype=torch.float64), 1)  # chunks at 0, 4, 8
    tensor([12.], dtype=torch.float64)
    """

    def __init__(self, num_examples: int, chunk: int, *, world: World | None = None) -> None:
        self.starts = list(range(0, num_examples, chunk))
        self.num_strands = min(NUM_STRANDS, len(self.starts))
        self.world = world or current()
        self.mine = range(self.world.rank, self.num_strands, self.world.size)

    def sum(self, compute: Callable[[int], Tensor], length: int, device: torch.device | None = None) -> Tensor:
        """Add up ``compute(start)``, a float64 vector [length], over all chunks of all workers."""
        rows = -(-self.num_strands // self.world.size)  # the same on every worker, as a gather wants it
        sums = torch.zeros(rows, length, dtype=torch.float64, device=device)
        for row, strand in enumerate(self.mine):
            for start in self.starts[strand :: self.num_strands]:
                sums[row] += compute(start)
        gathered = torch.stack(self.world.all_gather(sums), dim=1).flatten(0, 1)[: self.num_strands]
        total = gathered[0].clone()
        for one in gathered[1:]:
            total += one
        return total
