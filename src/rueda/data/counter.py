"""Random numbers that are a function of a counter, not of what was drawn before.

The numbers that a stateful generator draws for an example depend on how the work is divided among workers. A
counter-based generator draws the same number for example *i* of an epoch on any worker, in any order, before and after
a restart:

    draw = mix(key + GOLDEN * i)        key = mix(mix(GOLDEN * (seed + 1)) + GOLDEN * (epoch + 1))

``mix`` is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014). It is a bijection of 64-bit numbers, so distinct counters of a stream never have equal draws. There are
two implementations with the same results: one with numpy's unsigned integers for the CPU, and one with torch's signed
integers, which overflow in the same way, for any device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Bits = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(bits: Bits) -> Bits:
    """Apply the finaliser of SplitMix64 to 64-bit numbers; it is one-to-one.

    >>> [hex(value) for value in mix(np.arange(2, dtype=np.uint64))]
    ['0x0', '0x5692161d100b05e5']
    """
    bits = bits ^ (bits >> np.uint64(30))
    bits *= np.uint64(_FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_SECOND)
    bits ^= bits >> np.uint64(31)
    return bits


def mix_tensor(bits: torch.Tensor) -> torch.Tensor:
    """Apply :func:`mix` to an int64 tensor on any device.

    >>> [hex(value) for value in mix_tensor(torch.arange(2)).tolist()]
    ['0x0', '0x5692161d100b05e5']
    """
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, None)):
        # torch shifts int64 arithmetically, so the mask clears the copies of the sign bit.
        bits = bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))
        if factor is not None:
            bits = bits * _signed(factor)
    return bits


def key_of(*numbers: int) -> int:
    """Hash integers (seed, epoch, ...) to a 64-bit key.

    >>> key_of(0, 1) != key_of(1, 0)
    True
    """
    key = 0
    for number in numbers:
        key = int(mix(np.array([(key + _GOLDEN * (number + 1)) & _MASK], dtype=np.uint64))[0])
    return key


def draws(key: int, counters: NDArray[np.int64]) -> Bits:
    """Draw 64 random bits for every counter of the stream ``key``.

    >>> draws(key_of(7), np.arange(3)) % np.uint64(10)
    array([4, 4, 2], dtype=uint64)
    """
    return mix(counters.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def fork(keys: Bits, stream: int) -> Bits:
    """Derive a new key from each key; different numbers ``stream`` give independent keys."""
    return mix(keys + np.uint64((_GOLDEN * (stream + 1)) & _MASK))


def fork_tensor(keys: torch.Tensor, stream: int) -> torch.Tensor:
    """Apply :func:`fork` to an int64 tensor on any device."""
    return mix_tensor(keys + _signed((_GOLDEN * (stream + 1)) & _MASK))


def uniform(bits: Bits) -> NDArray[np.float64]:
    """Convert random bits to numbers in [0, 1)."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
