"""Which worker reads which example in an epoch, in the ways in which people divide a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DistributedSampler, TensorDataset

from rueda.data.partition import num_batches, order, positions_of

Shares = list[list[int]]
"""for each worker the examples that it reads, in their order"""


def sampled(num_examples: int, workers: int, epoch: int) -> Shares:
    """Divide with torch's sampler: a new shuffle in each epoch; some examples are read twice if they do not divide.

    >>> [len(share) for share in sampled(25, 2, epoch=0)]
    [13, 13]
    """
    found = []
    for rank in range(workers):
        dataset = TensorDataset(torch.zeros(num_examples))
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=workers, rank=rank)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def sliced(num_examples: int, workers: int, epoch: int) -> Shares:
    """Give each worker every n-th example, as ``range(rank, n, size)``; the shares may be unequal, by one example.

    >>> sliced(5, 2, epoch=0)
    [[0, 2, 4], [1, 3]]
    """
    return [list(range(rank, num_examples, workers)) for rank in range(workers)]


def sharded(num_examples: int, workers: int, epoch: int) -> Shares:
    """Divide as ``rueda.Loader`` does: one shuffled order for all, of which each worker takes every n-th; equal shares.

    >>> sharded(5, 2, epoch=0)
    [[4, 1], [2, 3]]
    """
    return _of_order("shards", num_examples, workers, epoch)


def drawn(num_examples: int, workers: int, epoch: int) -> Shares:
    """Let each worker draw from all examples at random, with replacement: nothing is divided, on average it is fair."""
    return _of_order("random", num_examples, workers, epoch)


def _of_order(method: str, num_examples: int, workers: int, epoch: int) -> Shares:
    found = order(num_examples, seed=0, epoch=epoch, method=method)
    local = num_batches(num_examples, workers)
    return [found[positions_of(0, local, rank, workers)].tolist() for rank in range(workers)]


WAYS: dict[str, Callable[[int, int, int], Shares]] = {
    "DistributedSampler": sampled,
    "every n-th example": sliced,
    "rueda.Loader, shards": sharded,
    "random draws": drawn,
}
"""ways to divide a data set, by name"""


def describe(shares: Shares, num_examples: int) -> str:
    """Return what is notable about shares: their sizes, and examples that are read twice or by nobody.

    >>> describe([[0, 2, 4], [1, 3]], 5)
    'The shares have 3 and 2 examples: **not equal**. Every example is read once.'
    """
    sizes = [len(share) for share in shares]
    times = Counter(example for share in shares for example in share)
    unread, twice = num_examples - len(times), sum(count > 1 for count in times.values())
    listed = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    equal = ": equally many" if len(set(sizes)) == 1 else ": **not equal**"
    if not unread and not twice:
        return f"The shares have {listed} examples{equal}. Every example is read once."
    return f"The shares have {listed} examples{equal}. Read by nobody: {unread}; read more than once: {twice}."
