"""The partition of examples among workers: pure functions of the seed, the epoch and the number of workers.

An epoch is one *order* of the examples, the same on all workers. The workers process it together, a global batch at a
time, and worker r of N takes every N-th example of each global batch::

    global batch at position p, of B examples    order[p : p + B]
    the share of worker r of N                   order[p + r : p + B : N]

So one worker at batch size B and N workers at batch size B/N see the same global batches. A position in the epoch is
one number, the same for all workers, from which a run can be resumed on another number of workers. There are three
kinds of order:

- ``shards``: a new shuffle in each epoch; the workers' shards are disjoint and together contain all examples;
- ``random``: each worker draws from the whole set with replacement, with its own random numbers;
- ``sequential``: the order of the data in every epoch, as a DataLoader without ``shuffle``.

Every worker always has the same number of batches, so no collective waits for a worker that has no batch left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rueda.data.counter import draws, key_of
from rueda.errors import DataError

Indices = NDArray[np.int64]
METHODS = ("shards", "random", "sequential")
REMAINDERS = ("drop", "pad", "short")

_ORDER, _DRAWS, _AUGMENT = 1, 2, 3  # separate streams of random numbers


def order(num_examples: int, seed: int, epoch: int, method: str = "shards") -> Indices:
    """Return the order of the examples in an epoch, the same on every worker.

    ``shards`` sorts the examples by random keys, which are all different (``counter.mix`` is one-to-one), so the order
    is the same on every machine and in every version of the libraries.

    >>> order(8, seed=0, epoch=0), order(8, seed=0, epoch=1)
    (array([6, 7, 4, 5, 2, 1, 3, 0]), array([4, 5, 7, 1, 0, 2, 6, 3]))
    >>> order(8, seed=0, epoch=0, method="random")
    array([6, 2, 4, 7, 4, 5, 6, 6])
    """
    check_examples(num_examples)
    if epoch < 0:
        raise DataError("epoch", expected="0 or more", got=epoch, do="count epochs from 0")
    positions = np.arange(num_examples, dtype=np.int64)
    if method == "shards":
        shuffled = np.argsort(draws(key_of(_ORDER, seed, epoch), positions))
        return np.asarray(shuffled, dtype=np.int64)
    if method == "random":
        drawn = draws(key_of(_DRAWS, seed, epoch), positions) % np.uint64(num_examples)
        return np.asarray(drawn, dtype=np.int64)
    if method == "sequential":
        return positions
    raise DataError("partition", expected=" or ".join(METHODS), got=method, do="choose one of them")


def positions_of(position: int, local_batch: int, rank: int, size: int) -> Indices:
    """Return the positions, within the epoch's order, of one worker's examples of the global batch at ``position``.

    >>> positions_of(12, local_batch=3, rank=1, size=2)
    array([13, 15, 17])
    """
    return np.arange(position + rank, position + local_batch * size, size, dtype=np.int64)


def example_keys(seed: int, epoch: int, num_examples: int) -> NDArray[np.uint64]:
    """Return a random key for each position in the epoch, for augmentation, independent of the number of workers."""
    return draws(key_of(_AUGMENT, seed, epoch), np.arange(num_examples, dtype=np.int64))


def num_batches(num_examples: int, global_batch: int, remainder: str = "drop") -> int:
    """Return the number of batches in an epoch, the same on every worker.

    >>> num_batches(100, 32, "drop"), num_batches(100, 32, "pad")
    (3, 4)
    """
    check_remainder(remainder)
    return num_examples // global_batch if remainder == "drop" else -(-num_examples // global_batch)


def evaluation_share(
    num_examples: int, position: int, local_batch: int, rank: int, size: int
) -> tuple[Indices, NDArray[np.float32]]:
    """Return the indices of a worker's examples in an evaluation batch, and their weights: 1, or 0 for padding.

    The last batch is shortened, to the same size on every worker, so each worker pads at most one example. Over all
    batches and workers, each example has weight 1 exactly once.

    >>> evaluation_share(7, position=4, local_batch=2, rank=0, size=2)
    (array([4, 6]), array([1., 1.], dtype=float32))
    >>> evaluation_share(7, position=4, local_batch=2, rank=1, size=2)
    (array([5, 0]), array([1., 0.], dtype=float32))
    """
    local_batch = min(local_batch, -(-(num_examples - position) // size))
    positions = positions_of(position, local_batch, rank, size)
    real = positions < num_examples
    return np.where(real, positions, 0), real.astype(np.float32)


def check_examples(num_examples: int) -> None:
    """Raise an error if the data set is empty."""
    if num_examples < 1:
        raise DataError("data", expected="at least 1 example", got=num_examples, do="check how the data were read")


def check_remainder(remainder: str) -> None:
    """Raise an error unless ``remainder`` is ``drop``, ``pad`` or ``short``."""
    if remainder not in REMAINDERS:
        raise DataError("remainder", expected=" or ".join(REMAINDERS), got=remainder, do="choose one of them")


def check_worker(rank: int, size: int) -> None:
    """Raise an error unless the rank is below ``size``."""
    if size < 1 or not 0 <= rank < size:
        raise DataError("rank", expected=f"from 0 to {size - 1} of {size} workers", got=rank, do="check the world")


def check_batch(num_examples: int, local_batch: int, size: int, remainder: str = "drop") -> None:
    """Raise an error if the local batch is empty, or the global batch larger than the data set, unless it is short."""
    if local_batch < 1:
        raise DataError("batch", expected="1 or more", got=local_batch, do="choose a larger batch")
    if local_batch * size > num_examples and remainder != "short":
        expected, do = f"at most the {num_examples} examples that there are", "choose a smaller batch or fewer workers"
        got = str(local_batch) if size == 1 else f"{local_batch} on each of {size} workers"
        raise DataError("batch", expected=expected, got=got, do=do)


def check_global_batch(num_examples: int, total: int, size: int, remainder: str = "drop") -> None:
    """Raise an error if a global batch has no example for some worker, or is larger than the data set."""
    if total < size:
        do = "use fewer workers (--max-np) or a larger batch"
        raise DataError("global batch", expected=f"an example for each of {size} workers", got=total, do=do)
    if total % size == 0:
        check_batch(num_examples, total // size, size, remainder)
    elif total > num_examples and remainder != "short":
        expected, do = f"at most the {num_examples} examples that there are", "choose a smaller batch or fewer workers"
        raise DataError("global batch", expected=expected, got=total, do=do)
