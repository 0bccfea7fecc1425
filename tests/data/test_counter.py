from __future__ import annotations

import numpy as np
import torch

from rueda.data.counter import draws, fork, fork_tensor, key_of, mix, mix_tensor, uniform

MASK = (1 << 64) - 1


def splitmix64(state: int, count: int) -> list[int]:
    """The published generator, written out with Python's whole numbers."""
    numbers = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        numbers.append(z ^ (z >> 31))
    return numbers


def test_draws_are_splitmix64() -> None:
    # the first numbers of seed 0 as they are published with the generator
    assert splitmix64(0, 3) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert draws(0, np.arange(1, 101)).tolist() == splitmix64(0, 100)
    key = key_of(3, 4)
    assert draws(key, np.arange(1, 101)).tolist() == splitmix64(key, 100)


def test_torch_gives_the_same_bits_as_numpy() -> None:
    bits = draws(5, np.arange(10_000))
    signed = torch.from_numpy(bits.view(np.int64))
    assert np.array_equal(mix_tensor(signed).numpy().view(np.uint64), mix(bits))
    for stream in (0, 1, 7):
        assert np.array_equal(fork_tensor(signed, stream).numpy().view(np.uint64), fork(bits, stream))


def test_draws_are_all_different_and_uniform() -> None:
    bits = draws(key_of(0), np.arange(100_000))
    assert len(np.unique(bits)) == len(bits)
    numbers = uniform(bits)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert 50 < chi_squared < 160  # 99 degrees of freedom: mean 99, deviation 14
    other = uniform(fork(bits, 1))
    assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.015


def test_keys_differ_in_every_place() -> None:
    keys = {key_of(*numbers) for numbers in np.ndindex(8, 8, 8)} | {key_of(0, 0), key_of(0)}
    assert len(keys) == 8**3 + 2
