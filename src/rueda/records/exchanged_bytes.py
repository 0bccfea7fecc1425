"""The bytes that one worker sends, and receives, for each update; the plan and the rows of a run use this function.

An all-reduce of b bytes over N workers, by a ring or any other algorithm that is optimal in bandwidth, sends
2 b (N - 1) / N bytes from each worker (Patarasu and Yuan 2009). Gradients are all-reduced at every update, parameters
once in ``sync_every`` updates. Fragments divide an exchange into smaller ones and change nothing about the sum.
"""

from __future__ import annotations


def exchanged_bytes(parameter_bytes: float, workers: int, sync_every: int = 1) -> float:
    """Return the bytes that one worker sends per update, on average.

    Args:
        parameter_bytes: the bytes of the trained parameters, which are those of their gradients.
        workers: the number of workers.
        sync_every: updates between two exchanges of parameters; 1: gradients or parameters at every update.

    >>> exchanged_bytes(1_000_000, workers=8), exchanged_bytes(1_000_000, workers=8, sync_every=500)
    (1750000.0, 3500.0)
    """
    return 2 * parameter_bytes * (workers - 1) / workers / sync_every
