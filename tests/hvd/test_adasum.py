"""Adasum against its definition, written out in float64, for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.core.adasum import tree


def two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Formula 7 of the paper."""
    dot = float(a @ b)
    return (1 - dot / (2 * float(a @ a))) * a + (1 - dot / (2 * float(b @ b))) * b


def definition(gradients: list[np.ndarray]) -> np.ndarray:
    """Halves of a power of two; what is left over was added to the first ranks before."""
    power = 1
    while 2 * power <= len(gradients):
        power *= 2
    folded = [
        two(gradients[i], gradients[i + power]) if i + power < len(gradients) else gradients[i] for i in range(power)
    ]

    def halves(values: list[np.ndarray]) -> np.ndarray:
        if len(values) == 1:
            return values[0]
        middle = len(values) // 2
        return two(halves(values[:middle]), halves(values[middle:]))

    return halves(folded)


def gradient(rank: int, size: int) -> np.ndarray:
    return np.random.default_rng(rank).normal(size=size)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_tree(num_ranks: int) -> None:
    gradients = [gradient(rank, 9) for rank in range(num_ranks)]
    result = tree([torch.from_numpy(g) for g in gradients])
    np.testing.assert_allclose(result.numpy(), definition(gradients), rtol=1e-12)


def test_what_the_paper_promises() -> None:
    a = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(tree([a, a, a, a]), a)  # parallel: the average
    b = torch.tensor([3.0, 0.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(tree([a, b]), a + b)  # orthogonal: the sum
    torch.testing.assert_close(tree([a, torch.zeros_like(a)]), a)
    torch.testing.assert_close(tree([torch.zeros_like(a), torch.zeros_like(a)]), torch.zeros_like(a))


def check_adasum() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    for size in (7, 20_000):
        expected = definition([gradient(rank, size) for rank in range(n)])
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4), (torch.float16, 4e-2)):
            x = torch.from_numpy(gradient(r, size)).to(dtype)
            y = hvd.allreduce(x, op=hvd.Adasum)
            np.testing.assert_allclose(y.double().numpy(), expected, atol=tolerance)
            told = hvd.allgather(y.view(1, -1))
            assert torch.equal(told, y.expand(n, -1))  # the same bits everywhere
    # Each tensor by itself, also when they travel together.
    sizes = (5, 3000, 9000)
    handles = [
        hvd.allreduce_async(torch.from_numpy(gradient(r + 10 * k, size)), op=hvd.Adasum, name=f"a{k}")
        for k, size in enumerate(sizes)
    ]
    for k, (size, handle) in enumerate(zip(sizes, handles, strict=True)):
        expected = definition([gradient(rank + 10 * k, size) for rank in range(n)])
        np.testing.assert_allclose(hvd.synchronize(handle).numpy(), expected, atol=1e-10)


@workers(2)
def test_adasum_on_2() -> None:
    check_adasum()


@workers(3)
def test_adasum_on_3() -> None:
    check_adasum()


@workers(4)
def test_adasum_on_4() -> None:
    check_adasum()
