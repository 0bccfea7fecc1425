"""A rank that is out of data joins; the others go on."""

from __future__ import annotations

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common.exceptions import HorovodInternalError


def check_join() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    batches = 2 + r  # rank 0 ends first
    for batch in range(batches):
        here = sum(batch < 2 + q for q in range(n))
        for count in (3, 20_000):
            x = torch.ones(count)
            assert hvd.allreduce(x, op=hvd.Sum, name=f"sum{batch}.{count}")[0] == here
            mean = hvd.allreduce(x, name=f"mean{batch}.{count}")
            torch.testing.assert_close(mean, x * here / n)  # still divided by all
            assert hvd.allreduce(x.long(), op=hvd.Sum, name=f"long{batch}.{count}")[0] == here
        for name in ("join", "hvd.join"):  # a tensor may have any name
            assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name=name)[0] == here
        a, b = hvd.grouped_allreduce([torch.ones(2), torch.ones(30_000).double()], op=hvd.Sum, name=f"group{batch}")
        assert a[0] == here and b[0] == here
        if here < n:
            for refused in (
                lambda: hvd.allgather(torch.ones(2), name="gathered"),
                lambda: hvd.broadcast(torch.ones(2), n - 1, name="cast"),
                lambda: hvd.allreduce(torch.ones(2), op=hvd.Max, name="max"),
            ):
                with pytest.raises(HorovodInternalError, match="have joined"):
                    refused()
    assert hvd.join() == n - 1  # the last, everywhere
    # Unnamed collectives count together again, though the ranks made different numbers of them.
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n
    last = hvd.join()
    assert hvd.allgather(torch.tensor([last])).unique().numel() == 1


def check_join_of_an_optimizer() -> None:
    """All ranks leave the fixed buckets in the same step, and create new ones after the join."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])
    expected = 0.0
    for _ in range(2):  # two epochs
        for step in range(4 + 2 * n):
            if step >= 4 + 2 * r:
                break
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        hvd.join()
        expected -= sum(sum(step < 4 + 2 * q for q in range(n)) / n for step in range(4 + 2 * (n - 1)))
        hvd.broadcast_(weight.data, n - 1)  # who joined early has missed the last steps
        torch.testing.assert_close(weight.detach(), torch.full((3,), expected))


@workers(2)
def test_join_on_2() -> None:
    check_join()
    check_join_of_an_optimizer()


@workers(3)
def test_join_on_3() -> None:
    check_join()
    check_join_of_an_optimizer()
