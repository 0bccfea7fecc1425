"""A line of advice, printed when a training waits for its data.

A loader notes how long each batch took; two readings of the clock per batch cost nothing. After the first epoch it says
once, on rank 0, if the training spent more than 30 % of its time, and at least 5 seconds, waiting for data.
"""

from __future__ import annotations

import sys
import time

from rueda.world.cores import usable_cores

SHARE, SECONDS = 0.3, 5.0


class Waiting:
    """Adds up the time that a loader's user waits for batches, over the first epoch that it reads.

    Args:
        num_workers: the number of loader processes.
        speaks: whether to print the line.
    """

    def __init__(self, num_workers: int, *, speaks: bool = True) -> None:
        self._num_workers, self._speaks = num_workers, speaks
        self._epoch: int | None = None
        self._began = self._waited = 0.0

    def add(self, epoch: int, began: float) -> None:
        """Count a batch of ``epoch`` that was asked for at the time ``began`` and is there now."""
        if not self._speaks:
            return
        now = time.perf_counter()
        if self._epoch is None:
            self._epoch, self._began = epoch, now  # without the first batch, for which files and processes are opened
        elif epoch == self._epoch:
            self._waited += now - began
        else:
            self._speaks = False
            if (line := advice(self._waited, began - self._began, self._num_workers, usable_cores())) is not None:
                print(line, file=sys.stderr, flush=True)


def advice(waited: float, seconds: float, num_workers: int, cores: int) -> str | None:
    """Return the line for a training that waited for ``waited`` of its ``seconds``; None if that is a small part.

    >>> advice(12.0, 30.0, num_workers=0, cores=8)
    'the training waited for its data 40 % of the first epoch (12 of 30 s): read in more processes, num_workers=2 (in a
    recipe: loader_processes = 2)'
    >>> advice(3.0, 30.0, num_workers=0, cores=8)
    """
    if waited < SECONDS or waited <= SHARE * seconds:
        return None
    share = round(100 * waited / seconds)
    told = f"the training waited for its data {share} % of the first epoch ({waited:.0f} of {seconds:.0f} s)"
    more = max(2, 2 * num_workers)
    if num_workers >= cores or (num_workers == 0 and cores == 1):
        return f"{told}: all {cores} cores read already; store examples smaller or decoded, or do less in transforms"
    return f"{told}: read in more processes, num_workers={more} (in a recipe: loader_processes = {more})"
