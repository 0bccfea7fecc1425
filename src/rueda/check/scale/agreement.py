"""What must be equal on all workers, compared in one small collective."""

from __future__ import annotations

import torch

from rueda.world import World


def differing(world: World, values: dict[str, int]) -> list[str]:
    """Return the names of the values that are not the same on all workers; all of them must call it.

    One all-reduce of the maximum, over the values and their negatives, tells whether the largest is the smallest.

    >>> differing(World(), {"order": 7})
    []
    """
    if world.size == 1:
        return []
    numbers = torch.tensor([*values.values()], dtype=torch.int64)
    largest, smallest = world.all_reduce(torch.stack([numbers, -numbers]), "max")
    return [name for name, high, low in zip(values, largest.tolist(), smallest.tolist(), strict=True) if high != -low]
