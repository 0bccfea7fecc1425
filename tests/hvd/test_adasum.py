"""Adasum against its definition, written out in float64, for any number of ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.core import adasum
from rueda.hvd.core.adasum import combine


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
def test_combine_follows_the_binary_tree(num_ranks: int) -> None:
    gradients = [gradient(rank, 9) for rank in range(num_ranks)]
    result = combine([torch.from_numpy(g) for g in gradients])
    np.testing.assert_allclose(result.numpy(), definition(gradients), rtol=1e-12)


def test_the_properties_that_the_paper_states() -> None:
    a = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(combine([a, a, a, a]), a)  # parallel: the average
    b = torch.tensor([3.0, 0.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(combine([a, b]), a + b)  # orthogonal: the sum
    torch.testing.assert_close(combine([a, torch.zeros_like(a)]), a)
    torch.testing.assert_close(combine([torch.zeros_like(a), torch.zeros_like(a)]), torch.zeros_like(a))


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


class InOrderGroup:
    """A process group as NCCL's: its operations run one after the other, and a send ends when it is received."""

    def __init__(self, rank: int, pipes: dict[tuple[int, int], tuple[Any, Any]]) -> None:
        self.rank, self.pipes = rank, pipes
        self.stream = ThreadPoolExecutor(1)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        data, received = self.pipes[self.rank, to]
        return self._run(lambda: (data.put(tensors[0].clone()), received.get(timeout=10)))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        data, received = self.pipes[source, self.rank]
        return self._run(lambda: (tensors[0].copy_(data.get(timeout=10)), received.put(None)))

    def _run(self, operation: Callable[[], object]) -> Any:
        work: Future[object] = self.stream.submit(operation)
        work.wait = work.result  # type: ignore[attr-defined]
        return work


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_exchanges_end_where_operations_run_in_order(size: int) -> None:
    pipes = {(a, b): (queue.Queue(), queue.Queue()) for a in range(size) for b in range(size)}
    results: dict[int, torch.Tensor] = {}

    def one(rank: int) -> None:
        results[rank] = adasum.allreduce(
            InOrderGroup(rank, pipes), rank, size, torch.from_numpy(gradient(rank, 6)), [6]
        )  # fmt: skip

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    expected = torch.from_numpy(definition([gradient(rank, 6) for rank in range(size)]))
    assert sorted(results) == list(range(size)), "a rank waits for ever"
    for result in results.values():
        torch.testing.assert_close(result, expected)
