"""Random numbers of a stream, apart from those of the training that reads it.

A stream that several workers read must be the same on all of them, so what it draws must not depend on what a worker's
training draws in between. Inside the context of an :class:`OwnRandom`, torch, NumPy and Python's ``random`` continue
from the state in which the last context left them; outside they are as they were.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from rueda.world.seeds import derive


class OwnRandom:
    """Generators of its own, seeded by a hash of numbers and names.

    >>> own = OwnRandom("example", 1)
    >>> before = random.getstate()
    >>> with own:
    ...     first = random.random()
    >>> with OwnRandom("example", 1):
    ...     again = random.random()
    >>> first == again, random.getstate() == before
    (True, True)
    """

    def __init__(self, *parts: int | str) -> None:
        self._states: tuple[Any, ...] | None = None
        self._outside: tuple[Any, ...] = ()
        self._seed = derive(*parts)

    def seed(self, *parts: int | str) -> None:
        """Seed the generators anew, inside the context."""
        _seed(derive(*parts))

    def __enter__(self) -> OwnRandom:
        self._outside = _states()
        if self._states is None:
            _seed(self._seed)
        else:
            _restore(self._states)
        return self

    def __exit__(self, *error: object) -> None:
        self._states = _states()
        _restore(self._outside)


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)  # the CPU's alone: no stream is read on a GPU
