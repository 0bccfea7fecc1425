"""The seeds of all random numbers, which decide what is equal and what differs between workers.

===========================  =========================  ==========================================
what                         seeded by                  so it is
===========================  =========================  ==========================================
model initialisation         ``seed``                   the same on all ranks
order of the data            ``seed, epoch``            the same after any restart
augmentation                 ``seed, epoch, position``  the same for any number of workers
dropout and all other draws  ``seed, rank, step``       different on every rank and at every step
===========================  =========================  ==========================================

Every random number is a function of these counters, not of earlier draws. So a run that was killed can be continued
exactly without saved generator states, and a rehearsal (N virtual workers in one process) draws the same numbers as N
real workers.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache

import numpy
import torch


def derive(*parts: int | str) -> int:
    """Return a 63-bit seed: a hash of counters and names.

    >>> derive("worker", 0, 1, 2) == derive("worker", 0, 1, 2), derive(1, 2) == derive(2, 1)
    (True, False)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_model(seed: int) -> None:
    """Seed the generators for the model's initialisation; every rank passes the same seed."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_worker(seed: int, rank: int, step: int) -> None:
    """Seed torch, NumPy and Python's ``random`` for one step of one worker."""
    number = derive("worker", seed, rank, step)
    random.seed(number)
    numpy.random.seed(number % 2**32)
    if has_accelerator():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


@cache
def has_accelerator() -> bool:
    """Return whether generators other than the CPU's must be seeded.

    Even without an accelerator, ``torch.manual_seed`` records the call stack for CUDA, MPS and XPU, which takes 0.2 ms
    per step.
    """
    return torch.accelerator.is_available()
